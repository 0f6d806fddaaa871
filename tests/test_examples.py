"""The notebooks run from top to bottom, each in a folder of its own, and find what they say they find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_of(notebook: Path) -> str:
    """The cells of code, one after the other."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def run(code: str, folder: Path) -> str:
    (folder / "cells.py").write_text(code, "utf-8")
    found = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "cells.py"]
    done = subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs_and_its_code_is_python(notebook: Path) -> None:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert not [cell for cell in cells if cell.get("outputs")]  # they would go stale
    compile(code_of(notebook), notebook.name, "exec")


@pytest.mark.slow
def test_photos_in_five_minutes(tmp_path: Path) -> None:
    shown = run(code_of(ROOT / "examples" / "photos.ipynb"), tmp_path)
    assert "of the stars are called unknown" in shown
    named, unknown = (int(part.split("%")[0].split()[-1]) for part in shown.splitlines()[-1].split(";"))
    assert named >= 80  # 100 when it was written
    assert unknown >= 50


@pytest.mark.nightly
def test_a_method_of_your_own(tmp_path: Path) -> None:
    shown = run(code_of(ROOT / "examples" / "own-method.ipynb").replace("STEPS = 60", "STEPS = 6"), tmp_path)
    rows = [line.split()[0] for line in shown.splitlines()]
    assert rows == ["method", "supervised", "fixmatch", "osp", "./mine.py"]


@pytest.mark.slow
def test_a_table_of_the_paper(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "digits.jsonl").write_bytes((ROOT / "results" / "digits.jsonl").read_bytes())
    shown = run(code_of(ROOT / "examples" / "paper-table.ipynb"), tmp_path)
    assert "supervised" in shown
    assert (tmp_path / "table1.png").stat().st_size > 5_000
