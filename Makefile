# Everything works from a bare clone. The first target you run makes the environment in .venv; later ones use it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist worksteal

.PHONY: help demo test test-slow test-all test-nightly lint mutants torture bench install clean

help:
	@echo "make demo          train on embedded digits, in seconds after the install"
	@echo "make test          the quick tests: minutes; before every commit"
	@echo "make test-slow     the slow ones: what learns, several processes; a quarter of an hour"
	@echo "make test-all      both; what .ci/run runs after lint"
	@echo "make test-nightly  the rest: killing, filling disks, Ray, pools larger than memory; an hour"
	@echo "make lint          style, types, direction of imports"
	@echo "make mutants       break the code one wire at a time: do the quick tests notice? (long)"
	@echo "make torture       kill, fuzz and attack it (under two hours)"
	@echo "make bench         speed and tables"
	@echo "make install       only make the environment in $(VENV)"
	@echo "make clean         remove $(VENV) and caches; runs/ stays"

demo: $(INSTALLED)
	@$(BIN)/osp demo

test: $(INSTALLED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not nightly"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "slow and not nightly"

test-all: $(INSTALLED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not nightly"

test-nightly: $(INSTALLED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m nightly

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: $(INSTALLED)
	$(BIN)/python scripts/mutants.py

torture: $(INSTALLED)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m torture

bench: $(INSTALLED)
	$(BIN)/osp bench speed

install: $(INSTALLED)

# Only a whole installation leaves the stamp; a changed lock file or pyproject.toml asks for a new one.
$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' found. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make environments: its modules venv and ensurepip are missing (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Installing into $(VENV), once; this takes a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/osp.egg-info
