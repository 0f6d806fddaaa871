"""Sorting loses no file, overwrites none, and undo puts every one back, whenever the process is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osp.errors import UserError
from osp.models.model import Prediction
from osp.photos import class_folders
from osp.photos.journal import JOURNAL, TABLE
from osp.photos.sorting import Action, sort_pile
from osp.photos.undoing import undo
from osp.tables import defused
from osp.verify import verify

ODD_NAMES = [
    "a b.jpg",
    "new\nline.jpg",
    "häß 日本.jpg",
    "=cmd|' '!A0.jpg",
    "-x.jpg",
    os.fsdecode(b"\xff.jpg"),
    '"q",.jpg',
]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content; links as what they point to."""
    return {
        str(path.relative_to(folder)): os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def make_pile(folder: Path, names: list[str]) -> list[Prediction]:
    decisions = []
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"content {number}".encode())
        label, inside, probability = ("cat", "dog")[number % 2], number % 3 != 2, (0.99, 0.5)[number % 4 == 1]
        decisions.append(Prediction(str(path), label, probability, number / 10, inside))
    return decisions


def place_of(decision: Prediction) -> str:
    if not decision.inside:
        return "_unknown"
    return decision.label if decision.probability > 0.8 else f"_unsure/{decision.label}"


def read_table(out: Path) -> list[dict[str, str]]:
    with open(out / TABLE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_every_file_goes_to_its_place_and_undo_puts_it_back(tmp_path: Path, action: Action) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    decisions = make_pile(pile, [*ODD_NAMES, "sub/a b.jpg", "sub/deep/x.jpg"])
    before = tree(pile)
    result = sort_pile(decisions, out, action)
    assert not result.failed
    assert sum(result.counts.values()) == len(decisions)
    for decision in decisions:
        name = Path(decision.file).name
        content = before[os.path.relpath(decision.file, pile)]
        placed = [path for path in (out / place_of(decision)).iterdir() if path.is_file()]
        (found,) = [path for path in placed if path.read_bytes() == content]
        assert found.name in (name, "a b (2).jpg")
        assert found.is_symlink() == (action == "link")
    assert tree(pile) == ({} if action == "move" else before)
    undone = undo(out)
    assert undone.restored == len(decisions)
    assert undone.moved == (len(decisions) if action == "move" else 0)
    assert not undone.problems
    assert tree(pile) == before
    assert not out.exists()


def test_the_table_alone_touches_no_image(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["b.jpg", "a.jpg", "c.jpg", "d.jpg"])
    before = tree(tmp_path / "pile")
    sort_pile(decisions, tmp_path / "out", "csv")
    rows = read_table(tmp_path / "out")
    assert tree(tmp_path / "pile") == before
    assert [row["decision"] for row in rows] == ["in", "in", "unsure", "out"]
    assert {row["file"]: row["place"] for row in rows} == {d.file: place_of(d) for d in decisions}
    assert {row["file"]: row["sure"] for row in rows} == {d.file: f"{d.sure:.4f}" for d in decisions}
    assert list(tree(tmp_path / "out")) == [JOURNAL, TABLE]


def test_surest_come_first_in_their_class_and_foreign_ones_last(tmp_path: Path) -> None:
    decisions = [
        Prediction(str(tmp_path / f"{number}.jpg"), label, probability, 0.5, inside)
        for number, (label, probability, inside) in enumerate(
            [("dog", 0.9, True), ("cat", 0.85, True), ("cat", 0.3, False), ("cat", 0.95, True), ("cat", 0.4, True)]
        )
    ]
    sort_pile(decisions, tmp_path / "out", "csv")
    found = [(row["class"], row["probability"], row["decision"]) for row in read_table(tmp_path / "out")]
    assert found == [
        ("cat", "0.9500", "in"),
        ("cat", "0.8500", "in"),
        ("cat", "0.4000", "unsure"),
        ("dog", "0.9000", "in"),
        ("cat", "0.3000", "out"),
    ]


def test_no_cell_of_the_table_begins_like_a_formula(tmp_path: Path) -> None:
    for text in ("=1", "+1", "-1+1", "@x", "\t=1", "\r=1", "\n=1", " =1", "＝1", "\tx", "\rx", "\nx"):
        assert defused(text) == f"'{text}"
    assert defused("cat-1.jpg") == "cat-1.jpg"
    decisions = make_pile(tmp_path / "=pile", ODD_NAMES)
    decisions = [Prediction(d.file, f"={d.label}", d.probability, d.ood_score, d.inside) for d in decisions]
    sort_pile(decisions, tmp_path / "out", "link")
    rows = read_table(tmp_path / "out")
    assert len(rows) == len(ODD_NAMES)
    assert not any(cell.lstrip()[:1] in tuple("=+-@") and key != "ood_score" for r in rows for key, cell in r.items())


def test_a_taken_name_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody makes a file of the same name between the look and the move."""
    decisions = make_pile(tmp_path / "pile", ["x.jpg"])
    before = tree(tmp_path / "pile")
    real = os.link
    calls: list[str] = []

    def link(source: str, target: str, **options: Any) -> None:
        if not calls:
            (tmp_path / "out/cat/x.jpg").write_bytes(b"of somebody else")
        calls.append(target)
        real(source, target, **options)

    monkeypatch.setattr(os, "link", link)
    sort_pile(decisions, tmp_path / "out", "move")
    assert (tmp_path / "out/cat/x.jpg").read_bytes() == b"of somebody else"
    assert (tmp_path / "out/cat/x (2).jpg").read_bytes() == b"content 0"
    undo(tmp_path / "out")
    assert tree(tmp_path / "pile") == before
    assert (tmp_path / "out/cat/x.jpg").read_bytes() == b"of somebody else"


def test_a_new_file_at_the_old_place_is_kept_and_told(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg"])
    sort_pile(decisions, tmp_path / "out", "move")
    Path(decisions[0].file).write_bytes(b"new")
    undone = undo(tmp_path / "out")
    assert Path(decisions[0].file).read_bytes() == b"new"
    assert Path(decisions[1].file).read_bytes() == b"content 1"
    assert (tmp_path / "out/cat/x.jpg").read_bytes() == b"content 0"
    assert any("another file has taken its old place" in reason for _, reason in undone.problems)
    Path(decisions[0].file).unlink()
    assert not undo(tmp_path / "out").problems
    assert Path(decisions[0].file).read_bytes() == b"content 0"


def test_a_copy_that_was_changed_is_left_and_nothing_else_is_blamed(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg"])
    out = tmp_path / "out"
    sort_pile(decisions, out, "copy")
    changed = out / "_unsure/dog/y.jpg"
    changed.write_bytes(b"edited")
    undone = undo(out)
    assert undone.problems == ((str(changed), "it was changed after it was sorted, and is left here"),)
    assert not undone.table
    assert list(tree(out)) == ["_unsure/dog/y.jpg", JOURNAL, TABLE]
    assert len(read_table(out)) == 2
    (changed.parent / "mine.jpg").write_bytes(b"mine")
    words = "not empty: it holds files that were not put there by sorting"
    assert [each for each in undo(out).problems if each[1] == words] == [
        (str(out / "_unsure/dog"), words),
        (str(out / "_unsure"), words),
    ]
    (changed.parent / "mine.jpg").unlink()
    changed.unlink()
    assert undo(out).table
    assert not out.exists()


def test_moves_to_another_disk_copy_and_undo_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    decisions = make_pile(tmp_path / "pile", ODD_NAMES)
    os.utime(decisions[0].file, ns=(10**18, 10**18))
    before = tree(tmp_path / "pile")
    assert not sort_pile(decisions, tmp_path / "out", "move").failed
    assert tree(tmp_path / "pile") == {}
    assert not undo(tmp_path / "out").problems
    assert tree(tmp_path / "pile") == before
    assert os.stat(decisions[0].file).st_mtime_ns == 10**18


CHANGES = ("open", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.rename", "os.utime")


def killed_at(number: int, act: Callable[[], object]) -> bool:
    """Run `act` in a child that is killed before its number-th operation on files; whether it came to that."""
    child = os.fork()
    if child == 0:
        left = [number]

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            reads = event == "open" and not int(arguments[2]) & (os.O_WRONLY | os.O_RDWR)  # type: ignore[call-overload]
            if event in CHANGES and not reads:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "links", [pytest.param(True, id="same disk"), pytest.param(False, id="other disk", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_killed_before_any_operation_nothing_is_lost_and_undo_is_whole(
    tmp_path: Path, action: Action, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting is killed at each operation in turn; then undo is killed at each operation, until it comes through."""
    real = os.link

    def no_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", real if links else no_link)
    number, kills = 0, 0
    while True:
        pile, out = tmp_path / f"pile{number}", tmp_path / f"out{number}"
        decisions = make_pile(pile, ["x.jpg", "y.jpg", "sub/x.jpg"])
        before = tree(pile)
        killed = killed_at(number, lambda out=out, decisions=decisions: sort_pile(decisions, out, action))  # type: ignore[misc]
        kills += killed
        contents = {*tree(pile).values(), *(tree(out).values() if out.exists() else ())}
        assert set(before.values()) <= contents
        if (out / JOURNAL).exists():
            step = number % 3  # not every pair of kills: a third of them
            while killed_at(step, lambda out=out: undo(out)):  # type: ignore[misc]
                step += 3
            if (out / JOURNAL).exists():
                undo(out)
        assert tree(pile) == before
        assert not out.exists() or not any(out.iterdir())
        if not killed:
            break
        number += 1
    assert kills >= 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_a_sort_cut_short_goes_on_when_repeated(tmp_path: Path, action: Action) -> None:
    for number in range(4, 24, 3):
        pile, out = tmp_path / f"pile{number}", tmp_path / f"out{number}"
        decisions = make_pile(pile, ["x.jpg", "y.jpg", "z.jpg", "w.jpg"])
        before = tree(pile)
        killed_at(number, lambda out=out, decisions=decisions: sort_pile(decisions, out, action))  # type: ignore[misc]
        there = sum(path.is_file() for path in out.glob("[!.]*/**/[!.]*"))
        again = sort_pile([d for d in decisions if Path(d.file).exists()], out, action)
        assert again.earlier == there
        assert again.counts == {"cat": 1, "_unsure/dog": 1, "_unknown": 1, "dog": 1}
        placed = {name for name in tree(out) if name not in (JOURNAL, TABLE) and not name.endswith("partial")}
        assert {row["file"] for row in read_table(out)} == {d.file for d in decisions}
        assert len(placed) == 4
        undo(out)
        assert tree(pile) == before
        assert not out.exists()


@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_a_sort_of_version_0_1_with_its_folder_foreign_is_verified_gone_on_with_and_undone(
    tmp_path: Path, action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    decisions = make_pile(pile, ["x.jpg", "y.jpg", "z.jpg", "w.jpg", "v.jpg", "u.jpg"])
    before = tree(pile)
    with monkeypatch.context() as patch:
        patch.setattr(class_folders, "UNKNOWN", "_foreign")
        sort_pile(decisions[:3], out, action)
    assert (out / "_foreign/z.jpg").exists()
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    again = sort_pile([d for d in decisions if Path(d.file).exists()], out, action, pile=pile)
    moved = action == "move"  # links and copies get the new name
    assert again.earlier == 2 + moved
    assert (again.counts.get("_foreign", 0), again.counts["_unknown"]) == (moved, 2 - moved)
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    assert not undo(out).problems
    assert tree(pile) == before
    assert not out.exists()


def test_a_journal_cannot_reach_outside_its_folder(tmp_path: Path) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim.jpg"
    out.mkdir()
    victim.write_bytes(b"precious")
    entry = {"action": "move", "from": str(tmp_path / "stolen.jpg"), "to": "../victim.jpg", "size": 8}
    (out / JOURNAL).write_text(json.dumps(entry) + "\n" + json.dumps({"table": "../victim.jpg"}) + "\n")
    assert len(undo(out, trust_journal=True).problems) == 2
    assert victim.read_bytes() == b"precious"


def test_class_names_cannot_leave_the_folder_or_collide_with_it(tmp_path: Path) -> None:
    labels = ["../up", "_foreign", "_unknown", "a/b", "a_b", "..", ""]
    decisions = make_pile(tmp_path / "pile", [f"{number}.jpg" for number in range(7)])
    decisions = [Prediction(d.file, label, 0.99, 0.1, True) for d, label in zip(decisions, labels, strict=True)]
    unknown = Prediction(str(tmp_path / "pile/f.jpg"), "_unknown", 0.1, 0.9, False)
    Path(unknown.file).write_bytes(b"unknown")
    result = sort_pile([*decisions, unknown], tmp_path / "out", "copy")
    assert sorted(result.counts.values()) == [1] * 8  # eight folders: none is shared
    assert {path.name for path in tmp_path.iterdir()} == {"pile", "out"}


def test_mistakes_are_told_before_anything_is_done(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg"])
    with pytest.raises(UserError, match="lies inside"):
        sort_pile([Prediction(str(tmp_path / "pile/x.jpg"), "cat", 1.0, 0.0, True)], tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thing").touch()
    with pytest.raises(UserError, match="not empty"):
        sort_pile(decisions, tmp_path / "full")
    with pytest.raises(UserError, match="is a file"):
        sort_pile(decisions, tmp_path / "full/thing")
    with pytest.raises(UserError, match="Did you mean 'move'"):
        sort_pile(decisions, tmp_path / "out", "mov")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nothing to undo"):
        undo(tmp_path / "full")
    assert not (tmp_path / "out").exists()


def test_files_that_are_gone_or_links_stay_and_are_named(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg", "z.jpg", "w.jpg"])
    Path(decisions[0].file).unlink()
    Path(decisions[1].file).unlink()
    Path(decisions[1].file).symlink_to(decisions[2].file)
    result = sort_pile(decisions, tmp_path / "out", "move")
    assert dict(result.failed) == {
        decisions[0].file: "No such file or directory",
        decisions[1].file: "it is a link, which would break when moved",
    }
    assert sum(result.counts.values()) == 2
    assert not undo(tmp_path / "out").problems
