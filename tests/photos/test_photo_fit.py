"""A fit counts every photo once, uses every label, leaves a whole folder or nothing, and answers mistakes plainly."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.small_backbone import small_backbone
from osp.errors import UserError
from osp.files import check_writable
from osp.models import load
from osp.models.instant import Instant
from osp.models.photo import BACKBONES, load_model
from osp.photos.decisions import decisions
from osp.photos.estimator import labeled_folder
from osp.photos.features import compute
from osp.photos.fit import ALONE, BOTH, about_threshold, fit, then_and_now
from osp.photos.instant import fit_instant
from osp.photos.journal import JOURNAL
from osp.photos.labels import NONE, Book, Label
from osp.photos.photographs import list_test
from osp.photos.sorting import sort_pile
from osp.runs.fitted import answer_of, check_free
from osp.runs.run import Run

COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200), "green": (40, 200, 40)}


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)


def photo(color: str, seed: int) -> Image.Image:
    """A color with its own coarse pattern: photos of one color are alike, not twins."""
    draws = np.random.default_rng(seed)
    coarse = draws.normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 30
    return Image.fromarray(np.clip(np.array(COLORS[color]) + coarse, 0, 255).astype(np.uint8))


def save(path: Path, color: str, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    photo(color, seed).save(path)
    return path


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """sorted/red and sorted/blue, a pile with green ones, and some to test on."""
    for number, color in enumerate(COLORS):
        for seed in range(24):
            path = tmp_path / ("pile" if seed >= 9 or color == "green" else f"sorted/{color}")
            save(path / f"{color} {seed}.png", color, 100 * number + seed)
        for seed in range(5):
            save(tmp_path / "test" / color / f"{seed}.png", color, 1000 + 100 * number + seed)
    return tmp_path


def run(folders: Path, **more: Any) -> Run:
    given: dict[str, Any] = {"backbone": "tiles", **more}
    pile = given.pop("pile", folders / "pile")
    return fit(given.pop("sorted", folders / "sorted"), pile, folders / given.pop("out", "run"), **given)


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_known_and_foreign_photos_are_told_apart_and_every_label_teaches(folders: Path) -> None:
    said: list[str] = []
    done = run(folders, test=folders / "test", say=said.append)
    assert done.result["classes"] == {"blue": 9, "red": 9}
    assert done.result["estimates"]["labels and pile"]["images"] == 18
    assert done.result["estimates"]["labels and pile"]["accuracy"] > 90
    tested = done.result["test"]["labels and pile"]
    assert (tested["images"], tested["foreign"]) == (10, 5)
    assert tested["accuracy"] > 80
    assert tested["auroc"] > 90
    assert any(line.startswith("Instant answer") for line in said)
    rows = table(done.path / "pile.csv")
    assert len(rows) == 54
    right = [Path(row["file"]).name.startswith(row["class"]) for row in rows if "green" not in row["file"]]
    assert np.mean(right) > 0.9
    out = {row["decision"] for row in rows if "green" in row["file"]}
    assert out == {"out"}
    assert json.loads((done.path / "result.json").read_text()) == done.result
    assert load_model(done.path).instant.estimate == done.model.instant.estimate


def test_a_sorted_photo_in_the_pile_counts_once_even_where_the_sorted_folder_lies_in_the_pile(folders: Path) -> None:
    plain = run(folders).result
    shutil.copytree(folders / "sorted", folders / "pile" / "mine")
    doubled = run(folders, out="second", sorted=folders / "pile" / "mine").result
    assert doubled["classes"] == plain["classes"]
    assert doubled["pile_photos"]["files"] == plain["pile_photos"]["files"] + 18
    assert doubled["pile_photos"]["counted"] == plain["pile_photos"]["counted"]
    assert doubled["estimates"] == plain["estimates"]
    notes = [row["note"] for row in table(folders / "second" / "pile.csv")]
    assert (notes.count("sorted, as red"), notes.count("sorted, as blue")) == (9, 9)
    shutil.copy(folders / "sorted" / "red" / "red 3.png", folders / "pile" / "copy.png")
    third = table(run(folders, out="third").path / "pile.csv")
    note = next(row["note"] for row in third if row["file"].endswith("copy.png"))
    assert note == f"also sorted, as red: {folders / 'sorted' / 'red' / 'red 3.png'}"


def test_a_test_photo_is_never_learned_from(folders: Path) -> None:
    shutil.copy(folders / "sorted" / "red" / "red 0.png", folders / "test" / "red" / "copy.png")
    shutil.copy(folders / "pile" / "red 20.png", folders / "test" / "red" / "copy of pile.png")
    done = run(folders, test=folders / "test")
    assert done.result["classes"] == {"blue": 9, "red": 8}
    assert done.result["pile_photos"]["counted"] == 53
    assert [row["reason"] for row in table(done.path / "left-out.csv")] == ["it is a test image, too"]


def test_the_same_photo_in_two_classes_teaches_neither(folders: Path) -> None:
    shutil.copy(folders / "sorted" / "red" / "red 0.png", folders / "sorted" / "blue" / "x.png")
    done = run(folders)
    assert done.result["classes"] == {"blue": 9, "red": 8}
    assert {Path(row["file"]).name for row in table(done.path / "left-out.csv")} == {"red 0.png", "x.png"}


def test_the_same_photo_in_two_classes_teaches_neither_even_where_a_resized_one_lies_elsewhere(folders: Path) -> None:
    shutil.copy(folders / "sorted/red/red 0.png", folders / "sorted/blue/copy.png")
    photo("red", 0).resize((96, 80)).save(folders / "pile/small.png")
    made = run(folders)
    assert made.result["classes"] == {"red": 8, "blue": 9}
    assert made.result["in_both"] == 1


def test_photos_of_a_fixed_camera_count_each_with_a_word(folders: Path) -> None:
    still = np.asarray(photo("green", 5000), float)
    for number in range(12):
        shot = Image.fromarray(np.clip(still + 2 * number, 0, 255).astype(np.uint8))
        shot.save(folders / f"pile/camera {number}.png")
    before = run(folders, out="before", pile=None).result["left_out"]
    said: list[str] = []
    made = run(folders, say=said.append)
    assert "12 photos show one scene (a fixed camera?): each counts." in said
    assert made.result["pile_photos"]["counted"] == 15 + 15 + 24 + 12
    assert made.result["left_out"] == before


def test_an_empty_pile_is_labels_alone_and_says_so(folders: Path) -> None:
    said: list[str] = []
    (folders / "empty").mkdir()
    for number, pile in enumerate([None, folders / "empty"]):
        done = run(folders, pile=pile, out=f"run{number}", say=said.append)
        assert list(done.result["estimates"]) == ["labels alone"]
        assert done.result["pile_photos"]["counted"] == 0
    assert sum("labels alone" in line for line in said) == 2
    assert sum("There is no pile" in line for line in said) == 1
    assert any(f"The pile {folders / 'empty'} holds no image (a wrong path?)" in line for line in said)
    assert not any(" 0 in the pile" in line for line in said)


def test_a_pile_of_sorted_photos_alone_is_called_so(folders: Path) -> None:
    said: list[str] = []
    run(folders, pile=folders / "sorted", say=said.append)
    assert any(f"All 18 photos of the pile {folders / 'sorted'} are sorted photos, too" in line for line in said)
    shutil.rmtree(folders / "pile")
    (folders / "pile").mkdir()
    (folders / "pile" / "broken.png").write_bytes(b"no")
    run(folders, out="second", say=said.append)
    assert any("None of the 1 photos of the pile" in line for line in said)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder in which nobody can write is needed")
def test_an_out_that_cannot_be_written_is_told_before_photos_are_looked_at(folders: Path) -> None:
    def look() -> Any:
        pytest.fail("photos were looked at")

    with pytest.raises(UserError, match=r"--out /proc/x/y cannot be written .*Choose another --out"):
        fit(folders / "sorted", folders / "pile", "/proc/x/y", backbone="tiles", progress=lambda *_: look())
    check_writable(folders / "new" / "deep")
    assert not (folders / "new").exists()
    assert not list(folders.glob(".osp-*"))


def test_a_class_with_one_photo_is_learned_and_said_to_be_unsure(folders: Path) -> None:
    save(folders / "sorted" / "green" / "one.png", "green", 5000)
    said: list[str] = []
    done = run(folders, say=said.append)
    assert done.result["classes"]["green"] == 1
    assert done.result["estimates"]["labels and pile"]["images"] == 18
    assert any("'green' has one photo" in line for line in said)
    assert done.result["pile_photos"]["per_class"]["green"] > 0 or done.result["pile_photos"]["out"] > 0


def test_one_photo_of_each_class_gives_an_answer_without_an_estimate(tmp_path: Path) -> None:
    save(tmp_path / "sorted" / "red" / "a.png", "red", 1)
    save(tmp_path / "sorted" / "blue" / "a.png", "blue", 2)
    for seed in range(30):
        save(tmp_path / "pile" / f"{seed}.png", "red" if seed % 2 else "blue", 10 + seed)
    done = run(tmp_path)
    assert done.result["estimates"]["labels and pile"] is None
    rows = table(done.path / "pile.csv")
    assert [row["class"] for row in rows] == ["red" if int(Path(row["file"]).stem) % 2 else "blue" for row in rows]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: shutil.rmtree(root / "sorted" / "red"), "at least two classes"),
        (lambda root: shutil.rmtree(root / "sorted"), "is not there"),
        (
            lambda root: (root / "sorted" / "red").rename(root / "r") and (root / "sorted" / "blue").rename(root / "b"),
            "no s",
        ),
        (lambda root: (root / "pile").rename(root / "p") and (root / "pile").write_text("x"), "a file, not a folder"),
        (lambda root: (root / "pile").rename(root / "run"), "not empty"),
        (lambda root: (root / "run").write_text("x"), "is a file"),
        (lambda root: [file.write_bytes(b"no") for file in (root / "sorted" / "red").iterdir()], "'red' has no photo"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(folders: Path, change: Any, words: str) -> None:
    change(folders)
    before = sorted(folders.iterdir())
    with pytest.raises(UserError, match=words):
        run(folders)
    assert [path for path in sorted(folders.iterdir()) if path.name != "cache"] == [
        path for path in before if path.name != "cache"
    ]


def test_odd_files_and_names_are_read_or_named(folders: Path) -> None:
    pile = folders / "pile"
    red = photo("red", 77)
    red.convert("CMYK").save(pile / "cmyk.tif")
    red.resize((1, 1)).save(pile / "tiny.png")
    red.resize((3000, 2000)).save(pile / "huge.jpg")
    red.save(pile / "moving.gif", save_all=True, append_images=[photo("blue", 3)])
    Image.fromarray(np.full((40, 40), 40000, np.uint16)).save(pile / "sixteen.png")
    turned = Image.Exif()
    turned[274] = 6
    red.save(pile / "turned.jpg", exif=turned)
    red.save(pile / "new\nline ü =1+1.png")
    (pile / "corrupt.jpg").write_bytes(b"\xff\xd8\xff broken")
    rows = table(run(folders).path / "pile.csv")
    names = {Path(row["file"]).name: row for row in rows}
    assert len(rows) == 54 + 8
    assert names["corrupt.jpg"]["decision"] == "unreadable"
    assert names["corrupt.jpg"]["note"]
    for name in ("cmyk.tif", "huge.jpg", "moving.gif", "turned.jpg", "new\nline ü =1+1.png"):
        assert names[name]["class"] == "red", name
    assert {names[name]["decision"] for name in ("tiny.png", "sixteen.png")} <= {"in", "out"}


def test_a_fit_goes_on_with_newly_sorted_photos_and_the_new_class_wins(folders: Path) -> None:
    shutil.move(folders / "sorted" / "blue" / "blue 0.png", folders / "sorted" / "red" / "wrong.png")
    first = run(folders)
    assert first.result["classes"] == {"blue": 8, "red": 9 + 1}
    assert [Path(row["file"]).name for row in table(first.path / "doubts.csv")] == ["wrong.png"]
    save(folders / "more" / "green" / "a.png", "green", 901)
    save(folders / "more" / "green" / "b.png", "green", 902)
    (folders / "more" / "blue").mkdir()
    shutil.copy(folders / "sorted" / "red" / "wrong.png", folders / "more" / "blue" / "right.png")
    said: list[str] = []
    done = run(
        folders, sorted=folders / "more", pile=None, out="second", earlier=first.path, backbone=None, say=said.append
    )
    assert done.result["classes"] == {"blue": 9, "green": 2, "red": 9}
    assert done.result["pile"] == first.result["pile"]
    assert done.result["backbone"] == "tiles"
    told = next(line for line in said if "earlier fit, of 18 labels" in line)
    assert told.endswith("2 classes then, 3 now: the figures cannot be compared.")
    assert "compare" not in (risen := then_and_now(90.0, 18, 20, ("a", "b"), ("b", "a")))
    assert "lower" not in risen
    assert "only mistakes were corrected" in then_and_now(90.0, 18, 20, ("a", "b"), ("b", "a"), fell=True)
    assert "Other classes" in then_and_now(90.0, 18, 20, ("a", "b"), ("a", "c"))


@pytest.mark.parametrize("unknown", ["_unknown", "_foreign"])
def test_what_was_sorted_can_be_fitted_on_and_gone_on_from(folders: Path, unknown: str) -> None:
    """Of a sort of today's version, or of 0.1: its folders of unknown and unsure photos make no classes."""
    run(folders)
    sorted_into = folders / "sorted-pile"
    for number, name in enumerate(("red", "blue", unknown, "_unsure/red")):
        for seed in range(90 + 10 * number, 93 + 10 * number):
            save(sorted_into / name / f"{seed}.png", "blue" if name == "blue" else "red", seed)
    (sorted_into / JOURNAL).touch()
    said: list[str] = []
    again = run(folders, sorted=sorted_into, pile=None, out="again", earlier=folders / "run", say=said.append)
    assert set(again.result["classes"]) == {"red", "blue"}
    assert any("was made by osp sort: 9 photos that you have moved or added teach; 3 others" in each for each in said)
    (sorted_into / JOURNAL).unlink()  # a folder of one's own may be called so
    assert unknown in run(folders, sorted=sorted_into, pile=None, out="third").result["classes"]


def test_labels_that_lie_in_a_folder_foreign_are_used_again(folders: Path) -> None:
    shutil.move(folders / "sorted", folders / "_foreign")
    before = run(folders, sorted=folders / "_foreign")
    newer = folders / "newer"
    save(newer / "red" / "new.png", "red", 77)
    again = run(folders, sorted=newer, pile=None, out="again", earlier=folders / "run")
    assert again.result["classes"]["red"] == before.result["classes"]["red"] + 1


def test_out_may_be_a_long_name_and_a_link_is_refused_before_any_work(folders: Path) -> None:
    assert run(folders, out="x" * 250).path.is_dir()
    (folders / "empty").mkdir()
    (folders / "link").symlink_to(folders / "empty")
    with pytest.raises(UserError, match="is a link"):
        check_free(folders / "link")


def test_names_of_classes_are_printed_on_their_own_line(folders: Path) -> None:
    shutil.move(folders / "sorted" / "red", folders / "sorted" / "red\nosp: all is well \x1b[2J")
    said: list[str] = []
    run(folders, say=said.append)
    assert not any("\x1b" in text or "\nosp" in text for text in said)


def test_an_earlier_run_that_is_damaged_is_named(folders: Path) -> None:
    first = run(folders)
    (first.path / "labels.json").write_text("{")
    with pytest.raises(UserError, match=r"labels\.json is damaged"):
        run(folders, out="second", earlier=first.path)
    (first.path / "result.json").unlink()
    with pytest.raises(UserError, match=r"result\.json is missing"):
        run(folders, out="second", earlier=first.path)


def test_an_unknown_backbone_is_named_with_those_there_are(folders: Path) -> None:
    with pytest.raises(UserError, match=r"'lite'.*lite0"):
        run(folders, backbone="lite")


def test_training_from_the_instant_answer_is_reported_beside_it_and_the_kept_one_is_named(folders: Path) -> None:
    done = run(folders, method="fixmatch")
    assert list(done.result["estimates"]) == ["labels alone", "labels and pile", "fixmatch from there"]
    assert done.result["estimates"]["fixmatch from there"]["images"] == 18
    assert (load_model(done.path).instant.adapter is not None) == (done.result["answer"] == "fixmatch")
    with pytest.raises(UserError, match="fixmatch"):
        run(folders, method="fixmach", out="second")
    with pytest.raises(UserError, match="otct needs pixels"):
        run(folders, method="otct", out="second")
    with pytest.raises(UserError, match="seed=-1"):
        run(folders, seed=-1, out="second")


@pytest.mark.parametrize(("alone", "both", "kept"), [(90, 80, ALONE), (80, 90, BOTH), (90, 90, BOTH)])
def test_the_better_of_labels_alone_and_labels_and_pile_is_kept_and_named(
    folders: Path, monkeypatch: pytest.MonkeyPatch, alone: float, both: float, kept: str
) -> None:
    """The pile says what is foreign either way."""

    def fitted(labeled: Any, labels: Any, pile: Any, **more: Any) -> Instant:
        made = fit_instant(labeled, labels, pile, **more)
        assert made.estimate is not None
        figure = replace(made.estimate, balanced_accuracy=both if len(pile) else alone)
        return replace(made, estimate=figure, bias=made.bias + (0 if len(pile) else np.array([9, 0], np.float32)))

    monkeypatch.setattr(sys.modules["osp.photos.fit"], "fit_instant", fitted)
    said: list[str] = []
    done = run(folders, say=said.append, test=folders / "test")
    assert done.result["kept"] == kept
    told = next(line for line in said if "Kept: " in line)
    assert f"Kept: {kept}" in told
    assert ("no difference" in told) == (alone == both)
    again = load_model(done.path).instant
    assert (again.bias[0] > 5) == (kept == ALONE)
    assert len(again.references) == 54
    figures = done.result["test"]
    assert figures[kept]["auroc"] == figures[BOTH]["auroc"]
    assert figures[kept]["known_accepted"] == figures[BOTH]["known_accepted"]


def test_the_answer_of_an_earlier_version_is_found() -> None:
    figures = dict.fromkeys((ALONE, BOTH, "osp from there"))
    assert answer_of({"estimates": figures, "answer": "instant"}) == BOTH
    assert answer_of({"estimates": figures, "answer": "osp"}) == "osp from there"
    assert answer_of({"estimates": figures, "answer": "instant", "kept": ALONE}) == ALONE


def test_it_is_said_what_the_threshold_rests_on(folders: Path) -> None:
    said: list[str] = []
    done = run(folders, say=said.append)
    assert done.result["threshold_photos"] == 18
    assert "by 18 photos held out: few" in said[-1]
    for color in ("red", "blue"):
        for file in sorted((folders / "sorted" / color).iterdir())[1:]:
            file.unlink()
    done = run(folders, say=said.append, out="second")
    assert done.result["threshold_photos"] == 0
    assert done.result["threshold"] is not None
    assert "a guess from the pile" in said[-1]
    assert "no OOD threshold" in about_threshold(0, 0)
    assert "take it as rough" not in about_threshold(100, 500)


def test_a_result_without_its_folders_is_gone_on_from(folders: Path) -> None:
    """As an earlier version, or another tool, may have left it."""
    first = run(folders)
    result = json.loads((first.path / "result.json").read_text())
    del result["sorted"], result["pile"]
    (first.path / "result.json").write_text(json.dumps(result))
    done = run(folders, sorted=None, pile=None, out="second", earlier=first.path, backbone=None)
    assert done.result["classes"] == first.result["classes"]


def test_guesses_of_a_sort_test_nothing(folders: Path) -> None:
    made = run(folders)
    pile = [str(path) for path in (folders / "pile").iterdir()]
    given = decisions(made.model, made.path, pile, 0.95, None)[0]
    out = folders / "by-class"
    sort_pile(given, out, "link", pile=folders / "pile")
    with pytest.raises(UserError, match=r"--test .* osp sort has put into folders there are guesses, and test nothing"):
        list_test(out, ["blue", "red"])
    shutil.copy(folders / "test/red/0.png", out / "red/mine.png")
    shutil.copy(folders / "test/green/0.png", out / "_unknown/mine.png")
    found = list_test(out, ["blue", "red"])
    assert [(Path(file).name, label) for file, label in zip(found.files, found.labels, strict=True)] == [
        ("mine.png", -1),
        ("mine.png", 1),
    ]
    assert any("are guesses" in note for note in found.notes)
    files, labels = labeled_folder(out)
    assert [(Path(file).parent.name, label) for file, label in zip(files, labels, strict=True)] == [
        ("red", "red"),
        ("_unknown", "-1"),
    ]


def test_labels_in_a_table_teach_and_none_of_mine_is_never_let_in(folders: Path) -> None:
    """Green lies in the pile: twelve are said to be none, of red and blue three more are named; red 20 was changed."""
    named = {f"{color} {seed}.png": color for color in ("red", "blue") for seed in (18, 19, 20)}
    named |= {f"green {seed}.png": NONE for seed in range(12)}
    book = Book(folders / "labels.csv")
    found = compute([folders / "pile" / name for name in named], small_backbone())
    for file, key in zip(found.files, found.keys, strict=True):
        book.add([Label(file, named[Path(file).name], key)])
    book.add([Label(str(folders / "pile" / "gone.png"), "red", "0" * 32)])
    save(folders / "pile" / "red 20.png", "red", 777)
    (folders / "no").mkdir()
    (folders / "pile" / "green 20.png").rename(folders / "no" / "x.png")
    said: list[str] = []
    done = run(folders, labels=book.path, none=folders / "no", say=said.append)
    assert done.result["classes"] == {"blue": 12, "red": 11}
    assert done.result["none_of_them"] == 13
    assert "13 of none of them" in said[0]
    assert any("no longer where they were (their labels are dropped): 1." in line for line in said)
    assert any("it has changed since it was labeled" in row["reason"] for row in table(done.path / "left-out.csv"))
    rows = {Path(row["file"]).name: row for row in table(done.path / "pile.csv")}
    assert {rows[f"green {seed}.png"]["note"] for seed in range(12)} == {"you said: none of the classes"}
    assert {rows[f"green {seed}.png"]["decision"] for seed in range(12)} == {"out"}
    assert done.result["pile_photos"]["counted"] == 53 - 5 - 12
    again = run(folders, out="second", sorted=folders / "sorted", earlier=done.path).result
    assert (again["none_of_them"], again["classes"]) == (13, {"blue": 12, "red": 11})


def test_labels_of_photos_that_have_all_gone_are_called_so(folders: Path) -> None:
    book = Book(folders / "labels.csv")
    book.add([Label(str(folders / "gone.png"), "red", "0" * 32)])
    with pytest.raises(UserError, match="None of the labeled photos is where it was"):
        run(folders, sorted=None, labels=book.path)


def test_a_photo_that_is_none_of_mine_is_put_with_the_unknown_whatever_it_looks_like(folders: Path) -> None:
    """Red 18 looks red, and a person said otherwise."""
    found = compute([folders / "pile" / "red 18.png"], small_backbone())
    Book(folders / "labels.csv").add([Label(found.files[0], NONE, found.keys[0])])
    done = run(folders, labels=folders / "labels.csv")
    said, left = decisions(
        done.model, done.path, [str(folders / "pile" / f"red {i}.png") for i in (18, 19)], 0.95, None
    )
    assert ([each.inside for each in said], left) == ([False, True], 0)


def test_copies_in_the_pile_are_counted_once_and_said_and_a_file_of_the_run_is_no_run(folders: Path) -> None:
    for number in range(2):
        shutil.copy(folders / "pile" / "green 0.png", folders / "pile" / f"copy {number}.png")
    said: list[str] = []
    before = len(list((folders / "pile").iterdir())) - 2
    done = run(folders, say=said.append)
    assert "Photos that are in the pile several times, and count once: 2 fewer." in said
    assert done.result["pile_photos"]["counted"] <= before
    with pytest.raises(UserError, match=r"result\.json is a file of the run .*run; name the folder"):
        load(done.path / "result.json")


def test_labels_of_the_page_decide_what_is_unknown_here_and_where_the_fit_goes_on(folders: Path) -> None:
    """Twelve green photos of the pile are said to be none; --none alone leaves score and threshold as they are."""
    found = compute([folders / "pile" / f"green {seed}.png" for seed in range(12)], small_backbone())
    book = Book(folders / "labels.csv")
    book.add([Label(file, NONE, key) for file, key in zip(found.files, found.keys, strict=True)])
    said: list[str] = []
    done = run(folders, labels=book.path, say=said.append)
    assert done.result["cut"] == done.result["threshold"] == 0.5
    assert "more like the 12 photos of none of your classes" in said[-1]
    again = run(folders, out="on", sorted=None, pile=None, earlier=done.path)
    assert again.result["cut"] == 0.5
    third = run(folders, out="third", sorted=None, pile=None, earlier=again.path)
    assert third.result["cut"] == 0.5
    (folders / "no").mkdir()
    for file in found.files:
        shutil.move(file, folders / "no")
    other = run(folders, out="other", none=folders / "no", say=said.append)
    assert "cut" not in other.result
    assert "set to let through 95 %" in said[-1]


def test_photos_sorted_for_an_earlier_fit_stay_where_they_are(folders: Path) -> None:
    """Also where their folder lies in the pile and a later fit was given another one."""
    shutil.move(folders / "sorted", folders / "pile" / "sorted")
    inside = sorted(map(str, (folders / "pile" / "sorted").rglob("*.png")))
    first = run(folders, sorted=folders / "pile" / "sorted")
    for color in ("red", "blue"):
        save(folders / "more" / color / "0.png", color, 5000)
    second = run(folders, out="second", sorted=folders / "more", earlier=first.path)
    assert second.result["sorted_before"] == [str(folders / "pile" / "sorted")]
    files = sorted(map(str, (folders / "pile").rglob("*.png")))
    for run_of in (first, second):
        said, _ = decisions(load(run_of.path), run_of.path, files, 0.95, None)
        assert not {each.file for each in said} & set(inside)
    unknown = json.loads((second.path / "result.json").read_text())
    del unknown["sorted_before"]  # as an earlier version wrote it
    (second.path / "result.json").write_text(json.dumps(unknown))
    said, _ = decisions(load(second.path), second.path, files, 0.95, None)
    assert not {each.file for each in said} & set(inside)


def test_a_model_file_beside_another_is_loaded(tmp_path: Path) -> None:
    """Only a file of a run is refused by the name of its folder."""
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "other.safetensors").write_bytes(b"no model")
    with pytest.raises(UserError) as refused:
        load(tmp_path / "other.safetensors")
    assert "name the folder" not in str(refused.value)
