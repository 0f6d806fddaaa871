# Everything works from a bare clone. The first target you run makes the environment in .venv; later ones use it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.developed
RELEASED := $(VENV)/.released
PIP := $(BIN)/python -m pip --disable-pip-version-check
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist worksteal

.PHONY: help demo test test-slow test-all test-nightly lint mutants torture bench check-results site dist install clean

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
	@echo "make site          the documentation as pages, in site/"
	@echo "make dist          the package in dist/, checked and tried in an empty environment"
	@echo "make check-results compare every figure of docs/reproduction.md with results/"
	@echo "make install       only make the environment in $(VENV)"
	@echo "make clean         remove $(VENV) and caches; runs/ stays"

demo: $(INSTALLED)
	@$(BIN)/osp demo

test: $(DEVELOPED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not nightly"

test-slow: $(DEVELOPED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "slow and not nightly"

test-all: $(DEVELOPED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not nightly"

test-nightly: $(DEVELOPED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m nightly

lint: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: $(DEVELOPED)
	$(BIN)/python scripts/mutants.py

torture: $(DEVELOPED)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m torture

bench: $(INSTALLED)
	$(BIN)/osp bench speed

site: $(RELEASED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(RELEASED)
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python scripts/try_wheel.py dist/*.whl

check-results: $(INSTALLED)
	$(BIN)/python scripts/check_results.py

install: $(INSTALLED)

# Versions come from requirements.lock; which of its packages are installed, from pyproject.toml: `make demo` needs half.
# Only a whole installation leaves the stamp; a changed lock file or pyproject.toml asks for a new one.
$(INSTALLED): requirements.lock pyproject.toml setup.py
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' found. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make environments: its modules venv and ensurepip are missing (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Installing into $(VENV), once; this takes a minute or two."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet -c requirements.lock setuptools
	@$(PIP) install -c requirements.lock --no-build-isolation -e .
	@touch $@

$(DEVELOPED): $(INSTALLED)
	@echo "Installing what tests and lint need into $(VENV), once."
	@$(PIP) install --quiet -c requirements.lock --no-build-isolation -e '.[dev]'
	@touch $@

$(RELEASED): $(INSTALLED)
	@echo "Installing what the package and its pages are built with into $(VENV), once."
	@$(PIP) install --quiet -c requirements.lock --no-build-isolation -e '.[release]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/osp.egg-info build dist site
