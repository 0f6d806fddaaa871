"""Do the tests notice a broken wire? Breaks the code in one small way at a time and runs the method's own tests.

    python scripts/mutants.py                          # all families
    python scripts/mutants.py osp t2t                  # the files of scripts/mutants/ with these names
    python scripts/mutants.py osp --only ramp          # mutants whose description contains this

A family is a file `scripts/mutants/NAME.yaml`:

    tests: [tests/methods/test_osp.py]                 # what must notice; for all mutants of the file
    mutants:
      - breaks: L_odc^u without its ramp               # in words, for the table
        file: src/osp/methods/osp.py
        old: step.linear_ramp(o.ramp)                  # must occur exactly once in the file
        new: 1.0
        tests: [tests/methods/test_t2t.py]             # instead of the family's, where others are meant

Each mutant is applied to a copy of src/ and tests/ in a temporary folder; the tree itself is never touched. The tests
run without the slow ones and stop at the first failure, so quick files should come first in `tests`. *killed* means
that a test failed; *survived* that none did; *hung* that the tests did not end in time, which counts as noticed;
*stale* that `old` is not there exactly once, and *unsound* that the code could not even be imported: such mutants prove
nothing and must be mended. Ends with 1 if a mutant survived or is stale or unsound.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ROOT / "scripts" / "mutants"
COPIED = ("src", "tests", "scripts", "docs", "conftest.py", "CONTRIBUTING.md", "README.md", "pyproject.toml")
NOTICED = ("killed", "hung")
OUTPUT = "pytest-output.txt"
FORKS = get_context("forkserver")
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One breakage: a text of a file and what stands there instead."""

    family: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    status: str
    detail: str
    seconds: float


def read_family(path: Path) -> list[Mutant]:
    """The mutants of one file."""
    family = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Mutant(
            path.stem,
            entry["breaks"],
            entry["file"],
            str(entry["old"]),
            str(entry["new"]),
            tuple(entry.get("tests", family["tests"])),
        )
        for entry in family["mutants"]
    ]


def copy_tree(folder: Path) -> None:
    """What tests need, without caches."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif source.is_file():
            shutil.copy(source, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...], timeout: float) -> Verdict:
    """Run these tests of the copy until one fails, in a process that has torch and pytest loaded already."""
    process = FORKS.Process(target=_run_pytest, args=(folder, tests))
    start = time.monotonic()
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
        return Verdict("hung", f"no end within {timeout:.0f} s", timeout)
    seconds = time.monotonic() - start
    if process.exitcode == 0:
        return Verdict("survived", "", seconds)
    output = (folder / OUTPUT).read_text(encoding="utf-8", errors="replace")
    failed = FAILED_TEST.search(output)
    name = failed.group(1) if failed else ""
    if process.exitcode == 1 and "::" in name:
        return Verdict("killed", name.removeprefix("tests/"), seconds)
    return Verdict("unsound", name or (output.strip().splitlines() or [f"exit {process.exitcode}"])[-1], seconds)


def _run_pytest(folder: Path, tests: tuple[str, ...]) -> None:
    """In the child: the package and the tests are those of the copy."""
    import pytest

    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder / "src")  # for tests that start Python anew
    sys.path.insert(0, str(folder / "src"))
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    options = [
        "-x",
        "-q",
        "-m",
        "not slow and not nightly",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-rfE",
        f"--rootdir={folder}",
    ]
    sys.exit(int(pytest.main([*options, *tests])))


def try_mutant(mutant: Mutant, timeout: float) -> Verdict:
    """Break a copy of the tree and see whether a test notices."""
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    found = text.count(mutant.old)
    if found != 1 or mutant.old == mutant.new:
        return Verdict("stale", f"`old` occurs {found} times" if found != 1 else "`new` is `old`", 0.0)
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_tree(folder)
        (folder / mutant.file).write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        return run_tests(folder, mutant.tests, timeout)


def check_whole(mutants: list[Mutant], timeout: float) -> None:
    """A test that fails on whole code would kill every mutant: refuse to go on."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy_tree(Path(name))
        tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        verdict = run_tests(Path(name), tests, timeout * len(tests))
    if verdict.status != "survived":
        sys.exit(f"The tests do not pass on the code as it is: {verdict.status} {verdict.detail}")
    print(f"whole code passes {len(tests)} test files in {verdict.seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Break the code one wire at a time: do the tests notice?")
    parser.add_argument("families", nargs="*", help="names of files in scripts/mutants/; all if none is given")
    parser.add_argument("--only", default="", help="mutants whose description contains this text")
    parser.add_argument("--workers", type=int, default=2, help="mutants side by side")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the tests of one mutant")
    parser.add_argument("--skip-whole", action="store_true", help="do not run the tests on the whole code first")
    given = parser.parse_args()
    paths = [FAMILIES / f"{name}.yaml" for name in given.families] or sorted(FAMILIES.glob("*.yaml"))
    mutants = [mutant for path in paths for mutant in read_family(path) if given.only in mutant.breaks]
    if not mutants:
        sys.exit("No mutant has that name.")
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    FORKS.set_forkserver_preload(["torch", "pytest", "hypothesis", "pydantic", "lightning_fabric", "sklearn.metrics"])
    if not given.skip_whole:
        check_whole(mutants, given.timeout)
    verdicts: list[Verdict] = []
    print("| family | what is broken | verdict | by | seconds |\n|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(given.workers) as workers:
        for mutant, verdict in zip(mutants, workers.map(lambda m: try_mutant(m, given.timeout), mutants), strict=True):
            verdicts.append(verdict)
            row = [mutant.family, mutant.breaks, verdict.status, verdict.detail, f"{verdict.seconds:.0f}"]
            print(f"| {' | '.join(row)} |", flush=True)
    missed = sum(verdict.status not in NOTICED for verdict in verdicts)
    print(f"\n{len(verdicts)} mutants, {len(verdicts) - missed} noticed, {missed} not")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
