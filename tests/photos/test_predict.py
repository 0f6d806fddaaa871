"""Predictions come for every file named, whatever names it and whichever kind of run answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.small_backbone import small_backbone
from osp import Recipe, train
from osp.cli import app
from osp.data import load
from osp.errors import UserError
from osp.models import Predictor
from osp.models import load as open_run
from osp.models.photo import PhotoModel
from osp.photos import decisions as deciding
from osp.photos.features import compute
from osp.photos.instant import fit_instant
from osp.photos.photographs import image_files


def osp(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The real command."""
    command = [sys.executable, "-m", "osp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=500)


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)
    return path


def test_files_folders_patterns_and_a_list_name_each_image_once(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path / name) for name in ("in/a.png", "in/deep/b.png", "c [1].png"))
    found = image_files([str(a), str(tmp_path / "in"), str(tmp_path / "in" / "**" / "*.png"), "-"], [f"{c}\n", "\n"])
    assert found == ([str(a), str(b), str(c)], [])
    assert image_files([str(c), "no.jpg"])[0] == [str(c), "no.jpg"]  # a name with marks in it is a name first
    with pytest.raises(UserError, match="Nothing matches"):
        image_files([str(tmp_path / "*.jpg")])
    with pytest.raises(UserError, match="no image"):
        image_files(["-"], [])


def test_a_name_that_exists_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "~tmp.jpg")
    assert image_files(["~tmp.jpg"])[0] == ["~tmp.jpg"]
    with pytest.raises(UserError, match="there is no home folder ~nobody-at-all"):
        image_files(["~nobody-at-all/x.jpg"])


def test_a_long_list_is_looked_at_in_few_parts_and_keeps_its_order_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part reads the whole cache again."""
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(12, 48)).astype(np.float32)
    model = PhotoModel(fit_instant(rows, np.arange(12) % 2, rows[:0], ["a", "b"]), small_backbone())
    files = []
    for number in range(14):
        files.append(f"{number}.png")
        Image.new("RGB", (8 + number, 8), (17 * number, 40, 90)).save(files[-1])
    Path(files[5]).write_bytes(b"no image")
    sizes: list[int] = []

    def noted(part: list[str], *given: Any, **more: Any) -> Any:
        sizes.append(len(part))
        return compute(part, *given, **more)

    monkeypatch.setattr(deciding, "compute", noted)
    monkeypatch.setattr(deciding, "AT_ONCE", 2)
    found = list(deciding.predict_cached(model, files, 0.95, None))
    assert sizes == [2, 4, 8]
    assert [each.file for each in found] == files
    assert [bool(each.reason) for each in found] == [number == 5 for number in range(14)]
    expected = list(model.predict_files(files))
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.probabilities, other.probabilities, atol=2e-3)


def test_files_of_other_kinds_in_a_folder_are_said_once_and_with_what_an_image_is(tmp_path: Path) -> None:
    a = write(tmp_path / "in" / "a.png")
    for name in ("clip.mp4", "scan"):
        (tmp_path / "in" / name).write_bytes(b"x")
    files, notes = image_files([str(tmp_path / "i*")])
    assert files == [str(a)]
    assert len(notes) == 1
    assert "1 .mp4" in notes[0]
    assert "Images are JPEG" in notes[0]
    a.unlink()
    with pytest.raises(UserError, match=r"no image to look at.*1 \.mp4"):
        image_files([str(tmp_path / "in")])


def test_a_trained_run_predicts_files_with_calibrated_probabilities_and_a_threshold_that_moves(tmp_path: Path) -> None:
    run = train(Recipe(data="digits", method="supervised", scale="demo", steps=60), tmp_path / "run", progress=False)
    model = open_run(run.path)
    assert isinstance(model, Predictor)
    held = load("digits")[1]
    assert held is not None
    pixels = np.asarray(held.images[:40])
    files = []
    for number, image in enumerate(pixels):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image[0]).save(files[-1])
    (tmp_path / "bad.png").write_text("no")
    said = list(model.predict_files([*files, tmp_path / "bad.png"]))
    assert said[-1].reason
    straight = run.model(pixels.transpose(0, 2, 3, 1))
    labels = [each.label for each in said if not each.reason]
    assert labels == [run.model.class_names[c] for c in straight.classes]
    assert all(abs(sum(each.probabilities) - 1) < 1e-5 for each in said[:-1])
    assert model.threshold_for(0.5) <= model.threshold_for(0.95) <= model.threshold_for(0.99)
    with pytest.raises(UserError, match="between 0 and 1"):
        model.threshold_for(1.5)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not there"):
        open_run(tmp_path / "none")
    with pytest.raises(UserError, match="no run folder"):
        open_run(tmp_path)
    (tmp_path / "photos.json").write_text('{"format": 99}')
    (tmp_path / "photos.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="format 99; this version reads 2"):
        open_run(tmp_path)


def test_the_commands_say_what_they_do() -> None:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert {"fit", "predict", "sort"} <= set(names)


@pytest.mark.slow
def test_from_two_folders_of_real_photos_to_a_sorted_pile_and_back(
    tmp_path: Path, real_data: Callable[..., Path]
) -> None:
    """The whole path by the real commands on 60 photographs: fit, predict, sort, undo."""
    photos = real_data("photos") / "photos"
    for name in ("forest", "sea", "street", "glacier"):
        for number, file in enumerate(sorted((photos / name).iterdir())[:15]):
            labeled = number < 5 and name != "glacier"
            place = tmp_path / ("sorted" if labeled else "new" if number >= 12 else "pile") / (name if labeled else "")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name} {file.name}").write_bytes(file.read_bytes())
    (tmp_path / "new" / "broken.jpg").write_text("no image")
    run = tmp_path / "run"
    fitted = osp("fit", tmp_path / "sorted", tmp_path / "pile", "--out", run)
    assert fitted.returncode == 0, fitted.stderr
    for words in ("Instant answer", "labels alone", "labels and pile", "look like one of the classes", "pile.csv"):
        assert words in fitted.stdout
    said = osp("predict", run, "-", "--format", "jsonl", stdin=f"{tmp_path / 'new'}\n")
    assert said.returncode == 1
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(rows) == 13
    assert [Path(row["file"]).name for row in rows if "error" in row] == ["broken.jpg"]
    known = [row for row in rows if "class" in row and "glacier" not in row["file"]]
    assert sum(Path(row["file"]).name.startswith(row["class"]) for row in known) >= 8
    before = sorted((tmp_path / "pile").iterdir())
    asked = osp("sort", run, tmp_path / "pile", "--next", "3")
    assert (asked.returncode, asked.stdout.count("?") >= 3) == (0, True), asked.stderr
    moved = osp("sort", run, tmp_path / "pile", "--to", tmp_path / "by", "--move")
    assert moved.returncode == 0, moved.stderr
    assert not list((tmp_path / "pile").iterdir())
    undone = osp("sort", "--undo", tmp_path / "by")
    assert (undone.returncode, sorted((tmp_path / "pile").iterdir())) == (0, before)
    assert not (tmp_path / "by").exists()


def test_a_threshold_that_lets_many_foreign_photos_in_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    from osp.cli.photos import print_fit

    estimate = {"accuracy": 90.0, "low": 80.0, "high": 95.0, "images": 40, "correct": 36, "balanced_accuracy": 90.0}
    pile: dict[str, Any] = {
        "counted": 60,
        "in": 58,
        "per_class": {"a": 30, "b": 28},
        "share": 0.8,
        "share_low": 0.6,
        "share_high": 0.95,
    }
    rows = {"a": (30, 20, 9), "b": (28, 24, 3)}
    pile["classes"] = {
        name: dict(zip(("let_in", "right", "strangers"), row, strict=True)) for name, row in rows.items()
    }
    result = {
        "classes": {"a": 20, "b": 20},
        "estimates": {"labels alone": estimate, "labels and pile": estimate},
        "test": None,
        "kept": "labels and pile",
        "pile_photos": pile,
        "threshold_photos": 40,
        "suspected_labels": 0,
        "seconds": 1.0,
    }
    print_fit(result, Path("run"))
    said = " ".join(capsys.readouterr().out.split())
    assert "About 80 % (60 to 95) of the pile belongs to them." in said
    assert "About 12 of these 58 are probably strangers" in said
    assert "a 30 20 1 9 b 28 24 1 3" in said  # let in, probably right, of another class, strangers
    assert "test" not in said
    assert "90.0 % (80 to 95) of 40" in said
    calm = {"a": {"let_in": 30, "right": 30, "strangers": 0}}
    print_fit({**result, "pile_photos": {**pile, "classes": calm}}, Path("run"))
    assert "Hardly any of these 30 should be strangers." in capsys.readouterr().out
    print_fit({**result, "pile_photos": {**pile, "share_high": 1.0}}, Path("run"))
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing shows clearly that it holds strangers" in said
    assert "probably strangers" not in said
    assert "Stricter" not in said
    print_fit({**result, "pile_photos": {**pile, "classes": None}}, Path("run"))  # of an earlier version
    assert "strangers" not in capsys.readouterr().out
    print_fit({**result, "pile_photos": {"counted": 0, "in": 0, "per_class": {}, "share": None}}, Path("run"))
    assert "pile.csv" not in capsys.readouterr().out
