"""Sorting into the same folder again, by another answer: the folder, the table and the counts say the same."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from test_sorting import killed_at, make_pile, read_table, tree

from osp.errors import UserError
from osp.models.model import Prediction
from osp.photos.journal import JOURNAL, TABLE
from osp.photos.sidecars import merged
from osp.photos.sorting import Action, sort_pile
from osp.photos.undoing import undo
from osp.verify import verify


@pytest.mark.parametrize("action", ["link", "copy"])
def test_sorting_again_places_anew_what_this_run_calls_otherwise(tmp_path: Path, action: Action) -> None:
    """Two photos have one name; one photo is moved by hand, one copy is edited by hand, and one stays as it was."""
    pile, out = tmp_path / "pile", tmp_path / "out"
    names = ("x.jpg", "sub/x.jpg", "hand.jpg", "edited.jpg", "same.jpg")
    make_pile(pile, list(names))
    before = tree(pile)

    def run(*labels: str) -> list[str]:
        given = [
            Prediction(str(pile / name), label, 0.99, 0.1, True) for name, label in zip(names, labels, strict=True)
        ]
        done = sort_pile(given, out, action)
        rows = {row["file"]: row["place"] for row in read_table(out)}
        for name in ("x.jpg", "sub/x.jpg", "same.jpg"):
            assert (out / rows[str(pile / name)]).read_bytes() == before[name]
        assert not done.failed
        assert sum(done.counts.values()) == 5
        return [Path(rows[str(pile / name)]).parts[0] for name in names]

    assert run("cat", "cat", "cat", "cat", "cat") == ["cat"] * 5
    (out / "owl").mkdir()
    (out / "cat/hand.jpg").rename(out / "owl/hand.jpg")
    if action == "copy":
        (out / "cat/edited.jpg").write_text("edited")
    assert run("dog", "cat", "dog", "dog", "cat") == ["dog", "cat", "owl", "dog", "cat"]
    assert run("cat", "dog", "dog", "dog", "cat") == ["cat", "dog", "owl", "dog", "cat"]
    placed = {name for name in tree(out) if name.endswith(".jpg")}
    assert len(placed) == 5 + (action == "copy")
    edited = out / "cat/edited.jpg"
    assert (edited.read_text() == "edited") if action == "copy" else not edited.is_symlink()
    edited.unlink(missing_ok=True)
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    assert not undo(out).problems or (out / "owl").exists()
    assert tree(pile) == before
    assert not tree(out)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("action", ["link", "copy", "xmp"])
def test_killed_while_photos_are_placed_anew_nothing_is_lost_and_undo_is_whole(tmp_path: Path, action: Action) -> None:
    for number in range(0, 60, 3):
        pile, out = tmp_path / f"pile{number}", tmp_path / f"out{number}"
        decisions = make_pile(pile, ["x.jpg", "sub/x.jpg"])
        (pile / "x.jpg.xmp").write_bytes(merged(None, "mine", "mine"))
        before = tree(pile)
        sort_pile(decisions, out, action)
        others = [replace(each, label="owl", probability=0.99) for each in decisions]
        killed = killed_at(number, lambda out=out, others=others: sort_pile(others, out, action))  # type: ignore[misc]
        if killed and number % 2:
            sort_pile(others, out, action)
            assert {row["place"].split("/")[0] for row in read_table(out)} == {"owl"}
        assert not undo(out).problems
        assert tree(pile) == before
        assert not out.exists()
        if not killed:
            break
    assert number > 6


def test_links_become_copies_and_none_is_left_behind(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg", "z.jpg"])
    before = tree(tmp_path / "pile")
    sort_pile(decisions, tmp_path / "out", "link")
    sort_pile(decisions, tmp_path / "out", "copy")
    photos = list((tmp_path / "out").rglob("*.jpg"))
    assert sorted(path.name for path in photos) == ["x.jpg", "y.jpg", "z.jpg"]
    assert not any(path.is_symlink() for path in photos)
    assert not undo(tmp_path / "out").problems
    assert tree(tmp_path / "pile") == before


def test_rows_of_an_earlier_version_that_does_not_say_how_sure_are_kept(tmp_path: Path) -> None:
    first, second = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg"]), tmp_path / "out"
    sort_pile(first[:1], second, "link", pile=tmp_path / "pile")
    entries = [json.loads(line) for line in (second / JOURNAL).read_text().splitlines()]
    for entry in entries:
        if "row" in entry:
            del entry["row"][5]
    (second / JOURNAL).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    sort_pile(first[1:], second, "link", pile=tmp_path / "pile", trust_journal=True)
    rows = {Path(row["file"]).name: row for row in read_table(second)}
    assert (rows["x.jpg"]["sure"], rows["y.jpg"]["sure"]) == ("", f"{first[1].sure:.4f}")
    assert (second / rows["x.jpg"]["place"]).is_symlink()


def test_a_table_that_somebody_wrote_into_is_neither_taken_away_nor_written_anew(tmp_path: Path) -> None:
    decisions, out = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg"]), tmp_path / "out"
    before = tree(tmp_path / "pile")
    sort_pile(decisions, out, "link")
    sort_pile(decisions, out, "link")
    mine = (out / TABLE).read_text() + "my own remark\n"
    (out / TABLE).write_text(mine)
    with pytest.raises(UserError, match=r"sorted\.csv was changed after it was written: rename it"):
        sort_pile(decisions, out, "link")
    assert [Path(place).name for place, _ in undo(out).problems] == [TABLE]
    assert (out / TABLE).read_text() == mine
    (out / TABLE).rename(tmp_path / "mine.csv")
    assert not undo(out).problems
    assert tree(tmp_path / "pile") == before
    assert not out.exists()
