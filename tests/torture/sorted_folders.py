"""Links and pipes at every place that `osp sort` and its undoing touch, and journals by strangers.

Whatever they find, nothing outside is written, moved or deleted, no photo is lost, and nothing waits or ends in a
traceback.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from osp.errors import UserError
from osp.models.model import Prediction
from osp.photos.journal import JOURNAL
from osp.photos.sorting import ACTIONS, Action, sort_pile
from osp.photos.undoing import check_sorted, undo
from torture.trial import trial

SIDECAR = b'<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"></r:RDF>'
CONTENTS = {"a.jpg": b"a", "a.mov": b"film", "a.jpg.xmp": SIDECAR, "sub/b.jpg": b"b", "c.jpg": b"c"}
SECRET = b"precious"
KINDS = ("file", "folder", "nowhere", "pipe", "itself")


def cases(base: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    for action in ACTIONS:
        touched = _touched(base / f"peace-{action}", action)
        for kind in KINDS:
            where = base / f"{action}-{kind}"
            yield (
                f"{kind} where sort --as {action} writes",
                lambda w=where, a=action, k=kind, t=touched: _each(  # type: ignore[misc]
                    w, t, lambda root, place: _sort(root, a, k, place)
                ),
            )
            yield (
                f"{kind} where its undo looks",
                lambda w=where, a=action, k=kind, t=touched: _each(  # type: ignore[misc]
                    w / "undo", [*t, "pile/sub", "pile"], lambda root, place: _undo(root, a, k, place)
                ),
            )
    for number, lines in enumerate(_journals()):
        yield f"journal of a stranger {number + 1}", lambda n=number, ls=lines: _journal(base / f"journal-{n}", ls)  # type: ignore[misc]


def _each(base: Path, places: list[str], attack: Callable[[Path, str], str]) -> str:
    """The first fault among these places."""
    for number, place in enumerate(places):
        if fault := attack(base / str(number), place):
            return f"{place}: {fault}"
    return ""


def _make(root: Path) -> list[Prediction]:
    """A pile, and a home that must stay as it is."""
    for name, content in CONTENTS.items():
        path = root / "pile" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "home/empty").mkdir(parents=True)
    (root / "home/diary.txt").write_bytes(SECRET)
    said = (("a.jpg", 0.9, True, ""), ("sub/b.jpg", 0.9, False, "group-01"), ("c.jpg", 0.5, True, ""))
    return [Prediction(str(root / "pile" / name), "cat", sure, 0.1, known, group=g) for name, sure, known, g in said]


def _touched(root: Path, action: Action) -> list[str]:
    """What a sort makes or changes, and where its copies lie until they are complete."""
    given, before = _make(root), _tree(root)
    sort_pile(given, root / "out", action, pile=root / "pile")
    changed = [name for name, content in _tree(root).items() if before.get(name) != content]
    partial = [os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.osp-partial") for name in changed]
    return [*changed, *partial]


def _tree(root: Path) -> dict[str, bytes | None]:
    """Files and folders below a folder, with the content of files; links are not followed."""
    found: dict[str, bytes | None] = {}
    for here, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(here, name)
            regular = name in files and path.is_file() and not path.is_symlink()
            found[str(path.relative_to(root))] = path.read_bytes() if regular else None
    return found


def _plant(root: Path, kind: str, place: str) -> bool:
    """Put something hostile at a place, what is there moved away; False where that makes no sense."""
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    away = root / "away" / path.name
    if os.path.lexists(path):
        away.parent.mkdir()
        os.rename(path, away)
    elif kind == "itself":
        return False
    if kind == "pipe":
        os.mkfifo(path)
    else:
        targets = {"file": "home/diary.txt", "folder": "home", "nowhere": "home/new", "itself": f"away/{path.name}"}
        path.symlink_to(root / targets[kind])
    return True


def _judged(root: Path, acts: list[Callable[[], Any]], may_add: bool = False) -> str:
    """What is wrong after these acts."""

    def run() -> None:
        for act in acts:
            with contextlib.suppress(UserError):
                act()

    outcome = trial(run)
    if not outcome.good:
        return str(outcome)
    home = _tree(root / "home")
    if not may_add and home != {"empty": None, "diary.txt": SECRET}:
        return f"the home holds {sorted(home)}"
    if home.get("diary.txt") != SECRET or "empty" not in home:
        return "the home has lost something"
    kept = set(_tree(root).values())
    lost = [name for name, content in CONTENTS.items() if content not in kept]
    shutil.rmtree(root)
    return f"lost: {lost}" if lost else ""


def _sort(root: Path, action: Action, kind: str, place: str) -> str:
    given, out, pile = _make(root), root / "out", root / "pile"
    sort_pile(given, out, "csv", pile=pile)  # a folder of one's own, which somebody else can write to
    if not _plant(root, kind, place):
        return ""
    return _judged(
        root,
        [
            lambda: sort_pile(given, out, action, pile=pile),
            lambda: check_sorted(out),
            lambda: undo(out, trust_journal=True),
        ],
    )


def _undo(root: Path, action: Action, kind: str, place: str) -> str:
    given, out, pile = _make(root), root / "out", root / "pile"
    sort_pile(given, out, action, pile=pile)
    if not _plant(root, kind, place):
        return ""
    trusted = place != "pile"  # where that leads elsewhere, the user is asked
    return _judged(root, [lambda: check_sorted(out), lambda: undo(out, trust_journal=trusted)])


def _journals() -> Iterator[list[dict[str, Any]]]:
    """Lines with every odd path; HERE stands for the folder of the case."""
    digest = hashlib.blake2b(SECRET, digest_size=16).hexdigest()
    sources: list[object] = [
        f"HERE/{name}" for name in ("home/diary.txt", "home/new.jpg", "pile/a.jpg", "out/cat/a.jpg")
    ]
    sources += ["HERE/pile/../home/diary.txt", "HERE/home/x.xmp", "/", "diary.txt", "HERE/a\0b", "", 5, None, ["x"]]
    targets: list[object] = [
        "cat/a.jpg",
        "../home/diary.txt",
        "HERE/home/diary.txt",
        "l/diary.txt",
        "l",
        "l/empty",
        "cat",
    ]
    targets += [
        "cat/../../home/diary.txt",
        f"{JOURNAL}/x",
        JOURNAL,
        "",
        ".",
        "..",
        "a/b/c/d/e",
        "\ud800/x",
        "a\0/b",
        5,
        None,
    ]
    targets += ["_sidecars/../l/diary.txt", "_sidecars/diary.txt", "home"]
    for action in ("link", "copy", "move", "xmp", "delete"):
        for source in sources:
            common = {
                "action": action,
                "from": source,
                "size": len(SECRET),
                "content": digest,
                "link": "HERE/home/diary.txt",
            }
            rows = (["x"] * 6, ["x"], 5, [5] * 6)
            lines = [{**common, "to": to, "row": rows[i % 4]} for i, to in enumerate(targets)]
            yield [{"pile": "HERE/home", "owner": os.getuid()}, *lines, *({**each, "with": source} for each in lines)]
    yield [{kind: to} for kind in ("folder", "table", "pile") for to in targets]


def _journal(root: Path, lines: list[dict[str, Any]]) -> str:
    given, out, pile = _make(root), root / "out", root / "pile"
    (out / "cat").mkdir(parents=True)
    (out / "cat/a.jpg").write_bytes(b"theirs")
    (out / "l").symlink_to(root / "home")
    text = "".join(json.dumps(line) + "\n" for line in lines).replace("HERE", str(root))
    (out / JOURNAL).write_text(text)
    before = _tree(root)
    for act in (lambda: undo(out), lambda: sort_pile(given, out, "move", pile=pile)):
        refused = trial(act)
        if any("action" in line for line in lines) and refused.kind != "refused" and _obeyed(root, before):
            return f"obeyed unasked: {refused}"
        if not refused.good:
            return str(refused)
    return _judged(
        root,
        [
            lambda: check_sorted(out),
            lambda: sort_pile(
                [each for each in given if os.path.exists(each.file)], out, "move", pile=pile, trust_journal=True
            ),
            lambda: undo(out, trust_journal=True),
        ],
        may_add=True,
    )


def _obeyed(root: Path, before: dict[str, bytes | None]) -> bool:
    """Whether something of the stranger's was done, rather than the sort that was asked for."""
    now = _tree(root / "home")
    return now != {name[5:]: content for name, content in before.items() if name.startswith("home/")}
