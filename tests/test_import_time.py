"""The command answers at once: heavy imports wait until they are needed. Counted: seconds depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "lightning_fabric", "sklearn", "matplotlib", "scipy", "PIL"}
MOST_MODULES = 1000
"""Help imports about 430 modules; torch alone would bring some 1,500."""


def imported(*arguments: str) -> set[str]:
    """The modules that a Python process with these arguments imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip() for line in lines[1:]}  # after the headings


@pytest.mark.parametrize("command", [(), ("demo",), ("train",), ("report",), ("serve",), ("datasets",), ("methods",)])
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    modules = imported("-m", "osp", *command, "--help")
    assert {"osp", "osp.cli"} <= modules
    assert not HEAVY & modules
    assert len(modules) < MOST_MODULES


@pytest.mark.parametrize("statement", ["import osp", "import osp.cli", "import osp; osp.Recipe; osp.data.available()"])
def test_heavy_packages_are_not_imported_before_they_are_needed(statement: str) -> None:
    modules = imported("-c", statement)
    assert "osp" in modules
    assert not HEAVY & modules
    assert len(modules) < MOST_MODULES
