"""Nothing is deleted, moved or written through a link, nothing outside the folders that were named, and no journal of a
stranger is obeyed unasked: what was tried against `osp sort`, one by one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_sorting import make_pile, read_table, tree

from osp.errors import UserError
from osp.models.model import Prediction
from osp.photos import journal as journals
from osp.photos import reaching
from osp.photos.journal import JOURNAL, Journal, read_journal
from osp.photos.sorting import Action, check_places, sort_pile
from osp.photos.undoing import check_sorted, undo

NAMES = [f"{number}.jpg" for number in range(6)]


@pytest.fixture(params=[True, False], ids=["handles", "paths"], autouse=True)
def handles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on a system without handles of folders."""
    monkeypatch.setattr(reaching, "HANDLES", request.param)


def journal(out: Path, *entries: dict[str, Any]) -> None:
    """The journal of a stranger."""
    out.mkdir(parents=True, exist_ok=True)
    (out / JOURNAL).write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def home(root: Path) -> Path:
    """What a stranger must not reach."""
    (root / "home/empty").mkdir(parents=True)
    (root / "home/diary.txt").write_bytes(b"precious")
    return root / "home"


def photos(root: Path) -> list[bytes]:
    """Every whole photo below a folder, links not counted."""
    return sorted(path.read_bytes() for path in root.rglob("*.jpg") if path.is_file() and not path.is_symlink())


# Originals that are links


def linked(pile: Path, out: Path) -> None:
    """As a deduplicator does it: each photo of the pile becomes a link to its copy."""
    copies = {path.read_bytes(): path for path in out.rglob("*.jpg")}
    for path in list(pile.iterdir()):
        target = copies[path.read_bytes()]
        path.unlink()
        path.symlink_to(target)


def test_copies_whose_originals_became_links_to_them_are_kept(tmp_path: Path) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    sort_pile(make_pile(pile, NAMES), out, "copy")
    linked(pile, out)
    assert len(check_sorted(out)[1]) == 6
    undone = undo(out)
    assert undone.restored == 0
    assert sum("is a link, and no photo; it is left here" in why for _, why in undone.problems) == 6
    assert len(photos(tmp_path)) == 6


def test_hard_links_in_place_of_originals_are_originals(tmp_path: Path) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    decisions = make_pile(pile, NAMES)
    before = tree(pile)
    sort_pile(decisions, out, "copy")
    copies = {path.read_bytes(): path for path in out.rglob("*.jpg")}
    for path in list(pile.iterdir()):
        target = copies[path.read_bytes()]
        path.unlink()
        os.link(target, path)
    assert undo(out).restored == 6
    assert tree(pile) == before


def test_a_link_that_was_left_at_the_old_place_is_no_photo(tmp_path: Path) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    sort_pile(make_pile(pile, ["x.jpg"]), out, "move")
    (pile / "x.jpg").symlink_to(out / "cat/x.jpg")
    assert undo(out).restored == 0
    assert photos(tmp_path) == [b"content 0"]
    (pile / "x.jpg").unlink()
    assert undo(out).moved == 1
    assert photos(pile) == [b"content 0"]


@pytest.mark.parametrize("action", ["copy", "move"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_pile_that_became_a_link_into_the_output_loses_nothing(tmp_path: Path, action: Action, deep: bool) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    folder = pile / "deep" if deep else pile
    sort_pile(make_pile(folder, ["x.jpg"]), out, action, pile=pile)
    shutil.rmtree(folder)
    folder.symlink_to(out / "cat")
    undone = undo(out, trust_journal=True)  # of the pile itself it asks
    assert undone.restored == 0
    assert undone.problems
    assert photos(tmp_path) == [b"content 0"]


def test_a_pile_of_links_is_copied_and_taken_back(tmp_path: Path) -> None:
    (pile := tmp_path / "pile").mkdir()
    decisions = make_pile(tmp_path / "elsewhere", ["x.jpg"])
    (pile / "x.jpg").symlink_to(decisions[0].file)
    given, out = [Prediction(str(pile / "x.jpg"), "cat", 0.9, 0.1, True)], tmp_path / "out"
    sort_pile(given, out, "copy")
    assert sort_pile(given, out, "copy").earlier == 1
    assert (out / "cat/x.jpg").read_bytes() == b"content 0"
    assert undo(out).restored == 1
    assert (pile / "x.jpg").read_bytes() == b"content 0"


# Links in the folder that is sorted into


def test_no_class_folder_that_is_a_link_is_written_into(tmp_path: Path) -> None:
    pile, out, victim = tmp_path / "pile", tmp_path / "out", home(tmp_path)
    decisions = make_pile(pile, ["x.jpg"])
    sort_pile(decisions, out, "csv")
    (out / "cat").symlink_to(victim)
    for action in ("copy", "move", "link"):
        result = sort_pile(decisions, out, action)
        assert "cat is a link" in result.failed[0][1]
    assert list(tree(victim)) == ["diary.txt"]
    assert photos(pile) == [b"content 0"]


@pytest.mark.parametrize("name", [JOURNAL, "sorted.csv"])
def test_neither_journal_nor_table_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    out, victim = tmp_path / "out", home(tmp_path)
    decisions = make_pile(tmp_path / "pile", ["$(touch PWNED).jpg"])
    out.mkdir()
    if name != JOURNAL:
        sort_pile(decisions, out, "csv")
        (out / name).unlink()
    (out / name).symlink_to(victim / "diary.txt")
    if name == JOURNAL:
        for act in (lambda: sort_pile(decisions, out, "copy"), lambda: check_places(tmp_path / "pile", out)):
            with pytest.raises(UserError, match="is a link"):
                act()
        with pytest.raises(UserError, match="is a link"):
            undo(out, trust_journal=True)
    else:
        sort_pile(decisions, out, "csv")
    assert (victim / "diary.txt").read_bytes() == b"precious"


# Journals of strangers


def test_a_journal_of_a_stranger_is_refused_and_shown(tmp_path: Path) -> None:
    out, victim = tmp_path / "out", home(tmp_path)
    journal(out, {"action": "move", "from": str(victim / ".ssh/authorized_keys"), "to": "cat/payload", "size": 4})
    (out / "cat").mkdir()
    (out / "cat/payload").write_bytes(b"evil")
    with pytest.raises(UserError, match="may not be yours") as refused:
        undo(out)
    assert f"put 1 files into {victim / '.ssh'}" in str(refused.value)
    assert "--trust-journal" in str(refused.value)
    assert list(tree(victim)) == ["diary.txt"]
    with pytest.raises(UserError, match="may not be yours"):
        sort_pile(make_pile(tmp_path / "pile", ["x.jpg"]), out, "move")
    assert photos(tmp_path / "pile") == [b"content 0"]


def test_a_journal_to_which_a_line_was_added_or_in_which_one_was_changed_is_refused(tmp_path: Path) -> None:
    pile, out = tmp_path / "pile", tmp_path / "out"
    sort_pile(make_pile(pile, ["x.jpg", "y.jpg"]), out, "move")
    whole = (out / JOURNAL).read_bytes()
    lines = whole.splitlines(keepends=True)
    more = json.dumps({"action": "move", "from": str(pile / "z.jpg"), "to": "cat/x.jpg", "size": 9}).encode() + b"\n"
    edited = whole.replace(str(pile / "x.jpg").encode(), str(pile / "z.jpg").encode())
    for content in (whole + more, edited, b"".join(lines[1:]), b"".join([*lines[:2], *lines[3:]])):
        (out / JOURNAL).write_bytes(content)
        with pytest.raises(UserError, match="changed by something other than osp"):
            undo(out)
    (out / JOURNAL).write_bytes(whole[:-5])  # a line cut short, and lines that are missing at the end
    assert not read_journal(out / JOURNAL).strange
    (out / JOURNAL).write_bytes(whole)
    assert undo(out).moved == 2


def test_a_journal_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that has this user's marks, as a copy of theirs has."""
    sort_pile(make_pile(tmp_path / "pile", ["x.jpg"]), tmp_path / "out", "move")
    monkeypatch.setattr(journals, "_owner", lambda file: 12345)
    with pytest.raises(UserError, match="another user or machine"):
        undo(tmp_path / "out")


def test_where_a_disk_has_no_owners_the_key_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There all files belong to whoever has mounted it."""
    monkeypatch.setattr(journals, "_owner", lambda file: 12345)
    sort_pile(make_pile(tmp_path / "pile", ["x.jpg"]), tmp_path / "out", "move")
    assert undo(tmp_path / "out").moved == 1
    sort_pile(make_pile(tmp_path / "pile", ["x.jpg"]), tmp_path / "out", "move")
    monkeypatch.setattr(journals, "key_file", lambda: tmp_path / "another-key")
    with pytest.raises(UserError, match="another user or machine"):
        undo(tmp_path / "out")


def test_a_pile_whose_path_leads_elsewhere_by_now_is_asked_about(tmp_path: Path) -> None:
    pile, out, victim = tmp_path / "pile", tmp_path / "out", home(tmp_path)
    sort_pile(make_pile(pile, ["x.jpg"]), out, "move")
    pile.rename(tmp_path / "away")
    pile.symlink_to(victim)
    with pytest.raises(UserError, match="leads to another place than when it was sorted"):
        undo(out)
    assert list(tree(victim)) == ["diary.txt"]
    assert undo(out, trust_journal=True).moved == 1


def test_lines_that_no_journal_has_are_passed_over_at_little_cost(tmp_path: Path) -> None:
    """A hole of 64 MB, and rows that are no texts."""
    out, decisions = tmp_path / "out", make_pile(tmp_path / "pile", ["x.jpg"])
    entry = {"action": "copy", "from": decisions[0].file, "to": "cat/x.jpg", "size": 9}
    rows: list[object] = [5, [5] * 6, [["x"]] * 6, {"x": 1}, [None]]
    journal(out, *({**entry, "row": row} for row in rows))
    with open(out / JOURNAL, "ab") as file:
        file.truncate(1 << 26)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + json.dumps({**entry, "row": ["x"]}).encode() + b"\n")
    tracemalloc.start()
    found = read_journal(out / JOURNAL)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert (found.damaged, len(found.entries)) == ([1, 2, 3, 4, 5, 6], 1)
    sort_pile(decisions, out, "copy", trust_journal=True)
    assert len(read_table(out)) == 1


def test_the_table_gives_no_place_to_a_photo_that_stayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg"])
    Path(decisions[0].file).unlink()
    sort_pile(decisions, tmp_path / "out", "move")
    assert [row["place"] for row in read_table(tmp_path / "out")] == ["", "_unsure/dog/y.jpg"]


def test_journals_of_earlier_versions_and_without_a_key_are_undone_when_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they were: no marks and no pile. Also where no key can be kept."""
    pile, out = tmp_path / "pile", tmp_path / "out"
    decisions = make_pile(pile, ["x.jpg", "sub/y.jpg"])
    before = tree(pile)
    sort_pile(decisions, out, "move")
    lines = [json.loads(line) for line in (out / JOURNAL).read_text().splitlines()]
    journal(out, *({key: each[key] for key in each if key != "mark"} for each in lines if "pile" not in each))
    with pytest.raises(UserError, match="earlier version"):
        undo(out)
    assert undo(out, trust_journal=True).moved == 2
    assert tree(pile) == before

    (tmp_path / "file").touch()
    monkeypatch.setattr(journals, "key_file", lambda: tmp_path / "file/key")
    sort_pile(decisions, out, "move")
    with pytest.raises(UserError, match="may not be yours"):
        undo(out)
    assert undo(out, trust_journal=True).moved == 2
    assert tree(pile) == before


def test_the_key_is_for_its_owner_alone_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert journals.user_key() is None
    key = journals.user_key(make=True)
    assert key is not None
    assert journals.user_key(make=True) == journals.user_key() == key
    assert os.stat(journals.key_file()).st_mode & 0o777 == 0o600
    assert [path.name for path in journals.key_file().parent.iterdir()] == ["journal-key"]


HOSTILE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "table": lambda victim: {"table": "l/diary.txt"},
    "table by name": lambda victim: {"table": "diary.txt"},
    "folder": lambda victim: {"folder": "l/empty"},
    "folder up": lambda victim: {"folder": "../home/empty"},
    "copy": lambda victim: {"action": "copy", "from": str(victim / "diary.txt"), "to": "l/diary.txt", "size": 8},
    "move out": lambda victim: {"action": "move", "from": str(victim / "x"), "to": "l/diary.txt", "size": 8},
    "move up": lambda victim: {"action": "move", "from": str(victim / "x"), "to": "../home/diary.txt", "size": 8},
    "absolute": lambda victim: {
        "action": "move",
        "from": str(victim / "x"),
        "to": str(victim / "diary.txt"),
        "size": 8,
    },
    "itself": lambda victim: {"action": "copy", "from": str(victim / "diary.txt"), "to": "m/diary.txt", "size": 8},
    "nul": lambda victim: {"action": "move", "from": str(victim / "x"), "to": "m/\0", "size": 8},
    "surrogate": lambda victim: {"folder": "\ud800"},
    "journal": lambda victim: {"folder": JOURNAL},
    "sidecar": lambda victim: {
        "action": "xmp",
        "from": str(victim / "diary.txt"),
        "to": "",
        "size": 8,
        "content": hashlib.blake2b(b"precious", digest_size=16).hexdigest(),
    },
    "kept": lambda victim: {
        "action": "xmp",
        "from": str(victim / "x.xmp"),
        "to": "_sidecars/../l/diary.txt",
        "size": 8,
    },
    "deep": lambda victim: {"action": "move", "from": str(victim / "x"), "to": "a/b/c/d", "size": 8},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_not_even_a_journal_that_is_trusted_reaches_out_of_its_folder(tmp_path: Path, kind: str) -> None:
    out, victim = tmp_path / "out", home(tmp_path)
    journal(out, HOSTILE[kind](victim))
    (out / "l").symlink_to(victim)
    (out / "m").mkdir()
    os.symlink(victim / "diary.txt", out / "m/diary.txt")
    assert check_sorted(out)[1] or "folder" in kind or "table" in kind or kind in ("journal", "surrogate")
    assert undo(out, trust_journal=True).problems or kind == "sidecar"  # that line is of no form
    assert tree(victim) == {"diary.txt": b"precious"}
    assert (victim / "empty").is_dir()
    assert (out / "m/diary.txt").is_symlink()


def test_a_journal_whose_lines_name_a_photo_twice_deletes_none(tmp_path: Path) -> None:
    """A move from a place to itself, as an earlier sort had left it."""
    pile, out = tmp_path / "pile", tmp_path / "out"
    decisions = make_pile(pile, NAMES)
    entries = [{"action": "move", "from": d.file, "to": d.file, "size": 9, "row": ["x"] * 6} for d in decisions]
    up = [{**entry, "to": f"../pile/{name}"} for entry, name in zip(entries, NAMES, strict=True)]
    journal(out, *entries, *up)
    (out / "cat").symlink_to(pile)
    sort_pile(decisions, out, "move", trust_journal=True)
    assert len(photos(tmp_path)) == 6
    undo(out, trust_journal=True)
    assert len(photos(tmp_path)) == 6


def test_a_file_is_put_back_into_its_pile_alone(tmp_path: Path) -> None:
    """Whatever a journal says that has this user's marks; and the pile itself is made again where it is gone."""
    pile, out, victim = tmp_path / "pile", tmp_path / "out", home(tmp_path)
    sort_pile(make_pile(pile, ["x.jpg"]), out, "move")
    with Journal(out / JOURNAL, str(pile)) as more:
        more.write({"action": "move", "from": str(victim / "x.jpg"), "to": "cat/x.jpg", "size": 9})
    assert not read_journal(out / JOURNAL).strange
    shutil.rmtree(pile)
    undone = undo(out)
    assert undone.moved == 1
    assert [why for _, why in undone.problems if "outside the pile" in why]
    assert photos(pile) == [b"content 0"]
    assert list(tree(victim)) == ["diary.txt"]


# Copies that are not read back, and files that are still written


@pytest.fixture
def other_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)


@pytest.mark.usefixtures("other_disk")
def test_a_photo_that_is_still_written_while_it_is_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg"])
    real = reaching.leaves

    def leaves(doomed: Any, kept: Any, changed: bool = False) -> bool:
        found = real(doomed, kept, changed)
        with open(decisions[0].file, "ab") as file:  # after the copy was read back
            file.write(b" more")
        return found

    monkeypatch.setattr(reaching, "leaves", leaves)
    result = sort_pile(decisions, tmp_path / "out", "move")
    assert result.failed == ((decisions[0].file, "something is still writing it"),)
    assert photos(tmp_path / "pile")[0].startswith(b"content 0 more")
    assert photos(tmp_path / "out") == []


@pytest.mark.usefixtures("other_disk")
def test_a_copy_that_does_not_read_back_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = make_pile(tmp_path / "pile", ["x.jpg"])
    monkeypatch.setattr(reaching, "same_content", lambda one, other, follow=False: False)
    result = sort_pile(decisions, tmp_path / "out", "move")
    assert result.failed == ((decisions[0].file, "it could not be read back at its new place"),)
    assert photos(tmp_path) == [b"content 0"]


def test_a_photo_that_cannot_be_taken_from_the_pile_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that may not be written to, which the tests' user may be allowed all the same."""
    decisions = make_pile(tmp_path / "pile", ["x.jpg"])
    real, calls = os.unlink, [0]

    def unlink(*given: Any, **more: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise PermissionError(13, "Permission denied")
        real(*given, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    result = sort_pile(decisions, tmp_path / "out", "move")
    assert result.failed == ((decisions[0].file, "Permission denied"),)
    assert photos(tmp_path) == photos(tmp_path / "pile") == [b"content 0"]


def test_long_names_come_back(tmp_path: Path) -> None:
    """In any script, and also where two of one name meet in one folder."""
    names = [f"{folder}/{sign * count}.jpg" for sign, count in (("日", 83), ("ß", 125), ("x", 251)) for folder in "abc"]
    decisions = [Prediction(d.file, "cat", 0.9, 0.1, True) for d in make_pile(tmp_path / "pile", names)]
    before = tree(tmp_path / "pile")
    assert not sort_pile(decisions, tmp_path / "out", "move").failed
    assert undo(tmp_path / "out").moved == 9
    assert not sort_pile(decisions, tmp_path / "out", "copy").failed
    assert undo(tmp_path / "out").restored == 9
    assert tree(tmp_path / "pile") == before


def test_rows_of_an_earlier_sort_are_written_as_they_were(tmp_path: Path) -> None:
    """Names that begin like a formula have an apostrophe in the journal and in the table, one and not two."""
    decisions = make_pile(tmp_path / "pile", ["x.jpg", "y.jpg"])
    decisions = [Prediction(d.file, "=cat", 0.9, 0.1, True) for d in decisions]
    sort_pile(decisions[:1], tmp_path / "out", "move")
    sort_pile(decisions[1:], tmp_path / "out", "move")
    assert [row["class"] for row in read_table(tmp_path / "out")] == ["'=cat", "'=cat"]
