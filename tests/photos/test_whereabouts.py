"""A person corrects a sorted folder in a file manager: sort, undo, verify and the next fit understand it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from test_sorting import make_pile, read_table, tree

from osp.errors import UserError
from osp.models.model import Prediction
from osp.photos.journal import JOURNAL, read_journal
from osp.photos.photographs import list_sorted
from osp.photos.sorting import Action, sort_pile
from osp.photos.undoing import undo
from osp.photos.whereabouts import moved_by_hand
from osp.verify import verify

NAMES = ["a.jpg", "b.jpg", "sub/a.jpg", "d.jpg", "e.jpg"]


def sort_cats(root: Path, action: Action) -> tuple[list[Prediction], dict[str, bytes]]:
    """All are put into `cat`, the last into `_unsure/cat`."""
    decisions = [Prediction(d.file, "cat", 0.9, 0.1, True) for d in make_pile(root / "pile", NAMES)]
    decisions[-1] = Prediction(decisions[-1].file, "cat", 0.5, 0.1, True)
    before = tree(root / "pile")
    sort_pile(decisions, root / "out", action)
    return decisions, before


def correct(out: Path) -> None:
    """Two into a folder of their own, one of them under another name; one is right."""
    (out / "dog").mkdir()
    shutil.move(out / "cat/a.jpg", out / "dog/a.jpg")
    shutil.move(out / "cat/a (2).jpg", out / "dog/rex.jpg")
    shutil.move(out / "_unsure/cat/e.jpg", out / "cat/e.jpg")


@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_one_moved_into_a_folder_that_was_made_later_does_not_keep_that_folder(tmp_path: Path, action: Action) -> None:
    files = make_pile(tmp_path / "pile", NAMES)
    labels = ["cat", "cat", "dog", "dog", "owl"]
    decisions = [Prediction(d.file, label, 0.9, 0.1, True) for d, label in zip(files, labels, strict=True)]
    before = tree(tmp_path / "pile")
    sort_pile(decisions, out := tmp_path / "out", action)
    shutil.move(out / "cat/a.jpg", out / "owl/a.jpg")
    assert undo(out).problems == ()
    assert tree(tmp_path / "pile") == before
    assert not out.exists()


@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_photos_moved_between_the_folders_are_found_and_come_back(tmp_path: Path, action: Action) -> None:
    _, before = sort_cats(tmp_path, action)
    correct(out := tmp_path / "out")
    found = moved_by_hand(out, read_journal(out / JOURNAL).entries)
    assert sorted((to, now) for (_, to), now in found.items()) == [
        ("_unsure/cat/e.jpg", "cat/e.jpg"),
        ("cat/a (2).jpg", "dog/rex.jpg"),
        ("cat/a.jpg", "dog/a.jpg"),
    ]
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    assert "moved by hand inside it: 3 files" in verdict.notes[0]
    undone = undo(out)
    assert (undone.restored, undone.problems) == (5, ())
    assert tree(tmp_path / "pile") == before
    assert [path.name for path in out.iterdir()] == ["dog"]  # made by a person, who may want it


@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_a_sort_that_is_repeated_leaves_corrections_as_they_are(tmp_path: Path, action: Action) -> None:
    decisions, _ = sort_cats(tmp_path, action)
    correct(out := tmp_path / "out")
    before = tree(out)
    again = sort_pile([d for d in decisions if os.path.exists(d.file)], out, action, pile=tmp_path / "pile")
    assert again.earlier == 5
    assert again.counts == {"cat": 3, "dog": 2}
    assert {name for name in tree(out) if name != JOURNAL} == {name for name in before if name != JOURNAL}
    assert {row["place"] for row in read_table(out)} == {name for name in before if name.endswith("jpg")}


def test_a_photo_that_is_gone_is_damage_and_equal_ones_are_found_each(tmp_path: Path) -> None:
    _, before = sort_cats(tmp_path, "move")
    correct(out := tmp_path / "out")
    (out / "cat/b.jpg").unlink()
    (verdict,) = verify(out)
    assert len(verdict.problems) == 1
    undo(out)
    assert tree(tmp_path / "pile") == {name: content for name, content in before.items() if name != "b.jpg"}

    for name in ("x.jpg", "y.jpg"):
        (tmp_path / "pile" / name).write_bytes(b"twins")
    twins = [Prediction(str(tmp_path / "pile" / name), "cat", 0.9, 0.1, True) for name in ("x.jpg", "y.jpg")]
    sort_pile(twins, tmp_path / "new", "move")
    (tmp_path / "new/dog").mkdir()
    os.rename(tmp_path / "new/cat/y.jpg", tmp_path / "new/dog/y.jpg")
    os.rename(tmp_path / "new/cat/x.jpg", tmp_path / "new/dog/x.jpg")
    assert undo(tmp_path / "new").moved == 2


def test_only_what_a_person_has_put_into_a_sorted_folder_is_a_label(tmp_path: Path) -> None:
    sort_cats(tmp_path, "move")
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"was made by osp sort: its folders hold guesses.*copy them into"):
        list_sorted(out)
    correct(out)
    (out / "dog/new.jpg").write_bytes(b"from elsewhere")
    listed, classes = list_sorted(out)
    assert classes == ("cat", "dog")
    labels = {
        (os.path.relpath(file, out), classes[label]) for file, label in zip(listed.files, listed.labels, strict=True)
    }
    assert labels == {("cat/e.jpg", "cat"), ("dog/a.jpg", "dog"), ("dog/rex.jpg", "dog"), ("dog/new.jpg", "dog")}
    assert sorted(os.path.relpath(file, out) for file in listed.guesses) == ["cat/b.jpg", "cat/d.jpg"]
    assert "4 photos that you have moved or added teach; 2 others" in listed.notes[0]
    assert listed.nones == []
    (out / "_unknown").mkdir()
    shutil.move(out / "cat/b.jpg", out / "_unknown/b.jpg")
    assert list_sorted(out)[0].nones == [str(out / "_unknown/b.jpg")]
    for name in ("cat", "dog"):
        shutil.copytree(out / name, tmp_path / "checked" / name)
    assert len(list_sorted(tmp_path / "checked")[0].files) == 5


def test_one_corrected_class_alone_is_told_of_from_and_names_are_those_of_the_classes(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["a.jpg", "b.jpg"])
    given = [Prediction(d.file, label, 0.9, 0.1, True) for d, label in zip(decisions, ["a/b", "c"], strict=True)]
    sort_pile(given, out := tmp_path / "out", "copy")
    os.rename(out / "c/b.jpg", out / "a_b/b.jpg")
    with pytest.raises(UserError, match=r"has one: 'a/b'.*--from RUN"):
        list_sorted(out)
