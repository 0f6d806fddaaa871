"""The README says what is so: its numbers are those of stored runs, its code runs, and it fits a screen or two."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp
from helpers import commands

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")


def test_its_numbers_are_those_of_the_stored_runs_that_it_names(tmp_path: Path) -> None:
    ((asked, said),) = re.findall(r"<!-- numbers: osp (.*?) -->\n(.*?)\n\n", TEXT, re.DOTALL)
    done = commands.osp(ROOT, *shlex.split(asked), "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "table1.json").read_text("utf-8"))["cells"]
    means = {(cell["row"], cell["measure"]): f"{cell['mean']:.1f}" for cell in cells}
    wanted = [("supervised", "accuracy"), ("osp", "accuracy"), ("osp", "auroc"), ("supervised", "auroc")]
    wanted.append(("supervised", "msp_auroc"))
    prose = re.sub(r"\(http[^)]*\)", "", said)
    assert re.findall(r"\d+\.\d+", prose) == [means[each] for each in wanted]


def test_it_counts_the_methods() -> None:
    assert f"{len(osp.methods.available())} methods" in TEXT


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 80


@pytest.mark.slow
def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for number, place in enumerate(["photos/cat", "photos/dog", "unsorted", "."]):
        for photo in range(4 if place != "." else 1):
            path = tmp_path / place / ("new.jpg" if place == "." else f"{photo}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng([number, photo]).integers(0, 256, (60, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    monkeypatch.chdir(tmp_path)
    exec(code.replace('scale="demo"', 'scale="demo", steps=6'), {})
    first, second = capsys.readouterr().out.splitlines()[-2:]
    file, said = first.split()
    assert file == "new.jpg"
    assert said in ("cat", "dog", "unknown")
    assert len(second.split()) == 2
