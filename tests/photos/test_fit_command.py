"""`osp fit` and `osp predict` at the edges: what is refused first, what goes on, and what is said on the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import osp.photos.decisions as decisions
from helpers.commands import osp
from helpers.small_backbone import small_backbone
from osp.models.photo import BACKBONES
from osp.photos.fit import swapped
from osp.photos.photographs import Listed


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sorted/red, sorted/blue, a pile and a test folder of a few photos."""
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)
    draws = np.random.default_rng(0)
    for color, base in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        for place, count in ((f"sorted/{color}", 6), ("pile", 8), (f"test/{color}", 3)):
            for number in range(count):
                pixels = np.clip(np.array(base) + draws.normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 30, 0, 255)
                (tmp_path / place).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / place / f"{color} {number}.png")
    return tmp_path


FIT = ("fit", "sorted", "pile", "--backbone", "tiles")


def test_a_fit_stopped_while_its_page_was_drawn_is_finished_by_the_same_command(folders: Path) -> None:
    assert osp(folders, *FIT, "--no-page").returncode == 0
    again = osp(folders, *FIT)
    assert again.returncode == 0, again.stderr
    assert "only its page was missing" in again.stdout
    assert (folders / "run" / "report.html").exists()
    assert "not empty" in osp(folders, *FIT).stderr
    (folders / "run" / "report.html").unlink()
    assert "not empty" in osp(folders, "fit", "test", "pile", "--backbone", "tiles").stderr  # other folders


def test_going_on_from_a_fit_keeps_its_test_photos_and_never_writes_into_it(folders: Path) -> None:
    assert osp(folders, *FIT, "--no-page", "--test", "test").returncode == 0
    assert osp(folders, "fit", "--from", "run", "--out", "next", "--no-page").returncode == 0
    result = json.loads((folders / "next" / "result.json").read_text())
    assert result["asked"]["test"] == str(folders / "test")
    assert next(iter(result["test"].values()))["images"] == 6
    said = osp(folders, "fit", "--from", "run", "--out", "run")
    assert "is the fit to go on from" in said.stderr
    shutil.rmtree(folders / "test")
    assert osp(folders, "fit", "--from", "run", "--out", "third", "--no-page").returncode == 0


def test_what_cannot_be_used_is_refused_before_torch_is_imported(folders: Path) -> None:
    (folders / "full").mkdir()
    (folders / "full" / "x").touch()
    for words in (
        ["sorted", "pile", "--out", "full"],
        ["none", "pile"],
        ["sorted", "none"],
        ["sorted", "--test", "no"],
    ):
        code = (
            "import sys; from osp import cli; sys.argv = ['osp', 'fit', *sys.argv[1:]]\n"
            "try: cli.main()\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
        )
        said = subprocess.run([sys.executable, "-c", code, *words], cwd=folders, capture_output=True, text=True)
        assert said.stdout.strip() == "2 False", said.stderr


def test_predict_uses_the_features_that_the_fit_has_computed(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert osp(folders, *FIT, "--no-page").returncode == 0
    (folders / "pile" / "broken.jpg").write_bytes(b"no")
    monkeypatch.setattr(decisions, "AT_ONCE", 5)
    looked: list[int] = []
    plain = type(small_backbone()).features

    def counted(self: Any, rows: Any) -> Any:
        looked.append(len(rows))
        return plain(self, rows)

    monkeypatch.setattr("osp.nets.pretrained.Backbone.features", counted)
    said = osp(folders, "predict", "run", "pile", "--format", "jsonl")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(rows) == 17
    assert [Path(row["file"]).name for row in rows if "error" in row] == ["broken.jpg"]
    assert [row["file"] for row in rows] == sorted(row["file"] for row in rows)
    assert looked == []
    for row in rows:
        if "class" in row:
            assert Path(row["file"]).name.startswith(row["class"])
            assert row["sure"] <= row["probability"]


def test_stopped_by_hand_it_says_what_to_do_next(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("osp.photos.fit.read", stop)
    said = osp(folders, *FIT)
    assert said.returncode == 130
    assert "the same command goes on" in said.stderr
    monkeypatch.undo()


def test_swapped_folders_are_suspected_where_the_pile_is_small_and_sorted() -> None:
    many = Listed([f"/p/{year}/{number}.jpg" for year in (2019, 2020) for number in range(40)], [0] * 80)
    few = Listed([f"/s/{name}/{number}.jpg" for name in ("cat", "dog") for number in range(8)], [-1] * 16)
    assert swapped(many, few)
    assert not swapped(few, many)
    assert not swapped(many, Listed([f"/s/{number}.jpg" for number in range(16)], [-1] * 16))
    assert not swapped(many, Listed())
