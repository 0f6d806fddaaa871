"""`osp fit --backbone none`: training from scratch on the same folders, tested on photos that it has not seen."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osp.cli import photos as door
from osp.errors import UserError
from osp.photos.photographs import Listed, list_pile, list_sorted, list_test, without_copies
from osp.runs.folder import RunFolder

COLORS = {"blue": (40, 40, 200), "red": (200, 40, 40), "green": (40, 200, 40)}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes sorted, all three colors in the pile and in the test folder."""
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    draws = np.random.default_rng(0)
    for color, mean in COLORS.items():
        for number in range(24):
            part = f"test/{color}" if number < 6 else "pile" if number < 12 or color == "green" else f"sorted/{color}"
            path = tmp_path / part / f"{color}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.array(mean) + draws.normal(size=(16, 16, 3)) * 25
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    return tmp_path


def start(folders: Path, **given: object) -> None:
    door.fit(folders / "sorted", **{"pile": folders / "pile", "out": folders / "run", "backbone": "none", **given})  # type: ignore[arg-type]


def test_it_is_tested_on_photos_kept_aside_and_leaves_a_page(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(folders, test=folders / "test", method="fixmatch", steps=4)
    said = capsys.readouterr().out
    assert "from scratch by fixmatch" in said
    assert re.search(r"Test photos: accuracy [\d.]+ % \(\d+ to \d+\) of 12\.", said)
    assert re.search(r"AUROC [\d.]+; \d+ % of 6 are accepted, \d+ % of the known ones are\.", said)
    assert (folders / "run" / "report.html").is_file()


def test_an_empty_pile_is_labels_alone_and_says_so(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folders / "pile")
    (folders / "pile").mkdir()
    start(folders, steps=2, page=False)
    said = capsys.readouterr().out
    assert "holds no image (a wrong path?)" in said
    assert "by supervised" in said
    assert "sorted photos alone" in said
    assert not (folders / "run" / "report.html").exists()


def test_all_sorted_photos_but_those_that_test_and_validate_teach(folders: Path) -> None:
    start(folders, steps=2, page=False)  # by the default method
    split = np.load(RunFolder(folders / "run").split)
    counts = {part: len(split[part]) for part in ("labeled", "val", "test")}
    assert counts == {"labeled": 2 * 8, "val": 2 * 2, "test": 2 * 2}  # of 12 photos per class
    plan = (folders / "run" / "plan.yaml").read_text("utf-8")
    assert "method: osp" in plan


def test_a_test_photo_in_the_pile_does_not_count(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(folders / "test/red/red-0.png", folders / "pile/copy.png")
    start(folders, test=folders / "test", method="supervised", steps=2, page=False)
    said = capsys.readouterr().out
    assert "of 11." in said
    assert "learned from, too: 1" in said


def test_a_fit_that_was_stopped_goes_on_and_is_tested(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(folders, method="supervised", steps=4, page=False)
    finished = (folders / "run" / "result.json").read_bytes()
    start(folders, test=folders / "test", method="supervised", steps=4, page=False)
    assert "Test photos: accuracy" in capsys.readouterr().out
    assert (folders / "run" / "result.json").read_bytes() == finished
    with pytest.raises(UserError, match="steps"):
        start(folders, method="supervised", steps=5, page=False)


def test_a_test_photo_that_was_learned_from_does_not_count(folders: Path) -> None:
    shutil.copy(folders / "test/red/red-0.png", folders / "sorted/red/copy.png")
    known, classes = list_sorted(folders / "sorted")
    test = list_test(folders / "test", classes)
    left = without_copies(test, (known, Listed()))
    assert len(left.files) == len(left.labels) == len(test.files) - 1
    assert str(folders / "test/red/red-0.png") not in left.files
    assert "learned from, too: 1" in left.notes[-1]
    shutil.copy(folders / "test/red/red-1.png", folders / "pile/copy.png")
    left = without_copies(test, (known, list_pile(folders / "pile")))
    assert len(left.files) == len(test.files) - 2
    with pytest.raises(UserError, match="keep other photos for --test"):
        without_copies(test, (test,))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"earlier": Path("run")}, "--from goes on from features"),
        ({"test": Path("nowhere")}, "nowhere"),
        ({"method": "nonsense"}, "nonsense"),
        ({"backbone": "lite0", "steps": 5}, "--steps goes with --backbone none"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(folders: Path, given: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        start(folders, **given)
    assert not (folders / "run").exists()
