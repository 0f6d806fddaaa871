"""Folders of classes: none outside, none shared, none of our own files."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osp.models.model import Prediction
from osp.photos.class_folders import class_folders
from osp.photos.journal import JOURNAL, TABLE
from osp.photos.photographs import list_sorted
from osp.photos.reaching import folded
from osp.photos.sorting import sort_pile
from osp.photos.undoing import undo

OURS = ["sorted.csv", JOURNAL, "_sidecars", "_foreign", "_unknown", "_unsure"]
ODD = [*OURS, "SORTED.CSV", "_Unknown", "_Unsure", "..", ".", "", "a/b", "a\\b", "con", "Nul.x", "COM1"]


@given(st.lists(st.one_of(st.text(), st.sampled_from(ODD)), unique=True, max_size=8))
def test_every_class_has_a_folder_of_its_own_that_any_disk_can_have(labels: list[str]) -> None:
    names = class_folders(labels).names
    assert set(names) == set(labels)
    taken = [*names.values(), "_foreign", "_unknown", "_unsure", "_sidecars", TABLE, JOURNAL]
    assert len({folded(name) for name in taken}) == len(taken)
    for name in names.values():
        assert name not in ("", ".", "..")
        assert not set(name) & set('/\\:*?"<>|\0\n')
        assert len(name.encode()) <= 250
        assert name == name.strip(". ")


def test_plain_names_stay_and_those_that_some_disk_takes_for_one_are_kept_apart() -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    names = class_folders(["cat", "my dog", "日本", composed, decomposed, "Straße", "STRASSE"]).names
    assert [names[each] for each in ("cat", "my dog", "日本")] == ["cat", "my dog", "日本"]
    assert len({folded(name) for name in names.values()}) == 7


@pytest.mark.parametrize("label", [*OURS, "Sorted.csv", "..", "+1", "\ud800"])
def test_a_class_that_is_called_like_one_of_our_files_is_sorted_and_comes_back(tmp_path: Path, label: str) -> None:
    (tmp_path / "pile").mkdir()
    decisions = []
    for number, inside in enumerate((True, True, False)):
        (tmp_path / f"pile/{number}.jpg").write_bytes(b"%d" % number)
        file = str(tmp_path / f"pile/{number}.jpg")
        decisions.append(Prediction(file, label, 0.9 if number else 0.5, 0.1, inside))
    done = sort_pile(decisions, tmp_path / "out", "move")
    assert not done.failed
    assert sorted(done.counts.values()) == [1, 1, 1]
    assert (tmp_path / "out" / TABLE).is_file()
    assert undo(tmp_path / "out").moved == 3
    assert not (tmp_path / "out").exists()


def test_unknown_photos_lie_by_group_and_a_group_that_is_renamed_is_a_class(tmp_path: Path) -> None:
    (tmp_path / "pile").mkdir()
    decisions = []
    for number, group in enumerate(("group-02", "", "group-01", "group-02")):
        file = tmp_path / f"pile/{number}.jpg"
        file.write_bytes(b"%d" % number)
        decisions.append(Prediction(str(file), "cat", 0.9, 0.9, False, group=group))
    done = sort_pile(decisions, out := tmp_path / "out", "move")
    assert done.counts == {"_unknown": 1, "_unknown/group-01": 1, "_unknown/group-02": 2}
    (out / "_unknown/group-02").rename(out / "heron")
    (out / "_unknown/group-01").rename(out / "ibis")
    listed, classes = list_sorted(out)
    assert (classes, len(listed.files), len(listed.guesses)) == (("heron", "ibis"), 3, 1)
    assert listed.grouped == set(listed.files)
    assert undo(out).moved == 4
    assert len(list((tmp_path / "pile").iterdir())) == 4
