"""Sort a pile into folders by class and by doubt: as a table, links, copies, or moves that can be undone.

    out/cat/...  out/dog/...     surely one of the classes
    out/_unsure/cat/...          probably, but look at them
    out/_unknown/...             none of the classes
    out/sorted.csv               file, class, probability, OOD score and place of every image
    out/sort-journal.jsonl       what was done, for undo

Nothing is ever overwritten: a file gets its new name by a hard link, which fails where the name is taken, and loses
its old name only then. Each operation is in the journal, on the disk, before it is begun; whatever a killed process
leaves behind, `undo` finds there and puts right.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osp.errors import UserError, printable, suggest
from osp.files import reason
from osp.models.model import Prediction
from osp.photos.journal import (
    JOURNAL,
    TABLE,
    Entries,
    Journal,
    check_origin,
    has_journal,
    origin_of,
    placed,
    read_journal,
)
from osp.photos.reaching import Outside, can_be_named, copy, folded, leaves, move, reached, same_content
from osp.tables import defused, fused, write_table

if TYPE_CHECKING:
    from osp.data.source import Progress

Action = Literal["csv", "link", "copy", "move"]
ACTIONS: tuple[Action, ...] = ("csv", "link", "copy", "move")

UNKNOWN, UNSURE = "_unknown", "_unsure"
OLD_UNKNOWN = "_foreign"
"""What `UNKNOWN` was called in version 0.1."""
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in "123456789")}
"""Names that Windows takes for devices, whatever ending they have."""
_LONGEST = 200

COLUMNS = ("file", "class", "probability", "ood_score", "decision", "place")


@dataclass(frozen=True)
class Sorted:
    """What was done."""

    counts: dict[str, int]
    """Images per folder of `out`, those of earlier sorts among them."""
    table: Path
    failed: tuple[tuple[str, str], ...]
    """(file, reason) of those that stayed where they were."""
    earlier: int = 0
    """Images that were in their places already."""


def sort_pile(
    decisions: Iterable[Prediction],
    out: Path | str,
    action: Action = "csv",
    sure: float = 0.8,
    progress: Progress | None = None,
    *,
    pile: Path | str | None = None,
    trust_journal: bool = False,
) -> Sorted:
    """Place every image under `out`; accepted images with a probability below `sure` go to the unsure ones.

    A sort that was cut short goes on when it is repeated: what is already in its place is not placed again. All images
    lie in the folder `pile`, by default the folder that they have in common: `undo` puts nothing anywhere else.
    `trust_journal` goes on in a folder whose journal somebody else may have written.
    """
    if action not in ACTIONS:
        raise UserError(f"action={action!r} is unknown.{suggest(action, ACTIONS)}")
    out = Path(os.path.abspath(out))
    ordered = sorted(decisions, key=lambda d: (not d.inside, d.label, -d.probability, d.ood_score, d.file))
    _check(out, ordered)
    root = os.path.abspath(pile) if pile is not None else _common(ordered, out)
    folders = class_folders(decision.label for decision in ordered)
    counts: dict[str, int] = {}
    failed: list[tuple[str, str]] = []
    noted = read_journal(out / JOURNAL) if has_journal(out) else Entries()
    check_origin(out, noted, trust_journal)
    earlier = [entry for entry in noted.entries if "row" in entry and _is_there(out, entry)]
    given = {os.path.abspath(decision.file) for decision in ordered}
    before = {entry["from"]: entry for entry in earlier if entry["from"] not in given}
    rows: list[Sequence[str]] = [[fused(cell) for cell in entry["row"]] for entry in before.values()]
    for entry in before.values():
        folder = _folder(entry["to"])
        counts[folder] = counts.get(folder, 0) + 1
    already = len(before)
    there = {entry["from"]: entry for entry in earlier if entry["action"] == action}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with Journal(out / JOURNAL, root) as journal:
            for done, decision in enumerate(ordered, 1):
                folder = folders.place(decision.label, decision.inside, decision.probability >= sure)
                row = _row(decision, sure)
                place = ""
                if action != "csv":
                    try:
                        begun = there.get(os.path.abspath(decision.file))
                        place = _finished(root, out, begun) if begun else ""
                        already += bool(place)
                        place = place or _place(decision.file, root, folder, out, action, journal, row)
                    except (OSError, Outside) as error:
                        failed.append((decision.file, reason(error) if isinstance(error, OSError) else str(error)))
                if action == "csv" or place:
                    folder = _folder(place) if place else folder
                    counts[folder] = counts.get(folder, 0) + 1
                rows.append([*row, place or folder])
                if progress:
                    progress(done, len(ordered), "Sorting")
            journal.write({"table": TABLE})
            write_table(out / TABLE, COLUMNS, rows)
    except OSError as error:
        raise UserError(f"The folder {out} cannot be written: {reason(error)}.") from None
    return Sorted(counts, out / TABLE, tuple(failed), already)


def check_places(pile: Path, out: Path) -> None:
    """Refuse a folder that this pile cannot be sorted into."""
    source, target = (os.path.join(os.path.realpath(folder), "") for folder in (pile, out))
    if target.startswith(source):
        where = "is the pile itself" if target == source else f"lies inside the pile {printable(pile)}"
        raise UserError(f"--to {printable(out)} {where}. Name a folder outside the pile to sort into.")
    if source.startswith(target):
        raise UserError(
            f"The pile {printable(pile)} lies inside --to {printable(out)}. Name a folder beside the pile to sort into."
        )
    _check_free(out)


def _check(out: Path, decisions: Sequence[Prediction]) -> None:
    real = os.path.realpath(out)
    for decision in decisions:
        if os.path.realpath(decision.file).startswith(real + os.sep):
            raise UserError(
                f"{printable(decision.file)} lies inside {printable(out)}. Name a folder outside the pile to sort into."
            )
    _check_free(out)


def _check_free(out: Path) -> None:
    shown = printable(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{shown} is a file. Name a new or empty folder to sort into.")
    with contextlib.suppress(FileNotFoundError):
        if not has_journal(out) and any(out.iterdir()):
            raise UserError(f"The folder {shown} is not empty. Name a new or empty folder to sort into.")


def _common(decisions: Sequence[Prediction], out: Path) -> str:
    """The folder that all images lie in."""
    try:
        return os.path.commonpath([os.path.dirname(os.path.abspath(each.file)) for each in decisions])
    except ValueError:  # none, or on several drives
        return str(out.parent)


def _is_there(out: Path, entry: dict[str, Any]) -> bool:
    try:
        with reached(out, placed(entry)) as place:
            return place.status() is not None
    except (Outside, OSError):
        return False


def _place(file: str, root: str, folder: str, out: Path, action: Action, journal: Journal, row: list[str]) -> str:
    """Link, copy or move one file to the first free name; returns its place below `out`."""
    path = os.path.abspath(file)
    with reached(*origin_of(path, [root])) as source:
        status = source.status()
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        linked = stat.S_ISLNK(status.st_mode)
        size = os.stat(path).st_size if linked else status.st_size
        if action == "move" and linked:
            raise OSError(errno.EINVAL, "it is a link, which would break when moved")
        _make_folders(out, folder, journal)
        name, number = Path(path).name, 1
        while True:
            to = os.path.join(*folder.split("/"), name if number == 1 else _numbered(name, number))
            number += 1
            with reached(out, to) as target:
                if target.status() is not None:
                    continue
                entry = {"action": action, "from": path, "to": to, "size": size}
                if linked and action == "copy":
                    entry["link"] = source.readlink()  # it was one before: undo then accepts it as the original
                journal.write({**entry, "row": [*(defused(cell) for cell in row), defused(to)]})
                try:
                    if action == "link":
                        target.symlink(path)
                    elif action == "copy":
                        copy(source, target, follow=linked)
                    else:
                        move(source, target)
                except FileExistsError:  # made by somebody else meanwhile
                    continue
                return to


def _numbered(name: str, number: int) -> str:
    return f"{Path(name).stem} ({number}){Path(name).suffix}"


def _make_folders(out: Path, folder: str, journal: Journal) -> None:
    parts = folder.split("/")
    for depth in range(1, len(parts) + 1):
        relative = os.path.join(*parts[:depth])
        with reached(out, relative) as place:
            if place.status() is None:
                journal.write({"folder": relative})
                with contextlib.suppress(FileExistsError):
                    place.mkdir()


def _finished(root: str, out: Path, entry: dict[str, Any]) -> str:
    """The place of a file that an earlier call has put there, a move brought to its end; empty where there is none."""
    with reached(*origin_of(entry["from"], [root])) as source, reached(out, placed(entry)) as target:
        if entry["action"] == "link":
            return str(entry["to"]) if target.is_link() and target.readlink() == entry["from"] else ""
        if entry["action"] == "copy":
            return str(entry["to"]) if target.is_file() and same_content(target, source, follow=True) else ""
        if not leaves(source, target):
            return ""
        source.remove()
        return str(entry["to"])


def _folder(place: str) -> str:
    """The folder of a place below `out`, with / between its parts."""
    return Path(place).parent.as_posix()


def _row(decision: Prediction, sure: float) -> list[str]:
    verdict = "out" if not decision.inside else "in" if decision.probability >= sure else "unsure"
    numbers = (f"{decision.probability:.4f}", f"{decision.ood_score:.4f}")
    return [decision.file, decision.label, *numbers, verdict]


@dataclass(frozen=True)
class ClassFolders:
    """The folder of each class, with those for unsure and unknown photos."""

    names: dict[str, str]

    def place(self, label: str, inside: bool, sure: bool) -> str:
        """Where a photo belongs, with / between the parts."""
        if not inside:
            return UNKNOWN
        return self.names[label] if sure else f"{UNSURE}/{self.names[label]}"


def class_folders(labels: Iterable[str]) -> ClassFolders:
    """Names that every disk can have and keeps apart, for classes of any name.

    Signs that some system does not take become `_`. A name that is taken, be it by our own files or by another class
    up to capitals and the way accents are written, gets a `_` in front.

    >>> class_folders(["cat", "Cat", "sorted.csv", "..", "a/b"]).names
    {'..': '_', 'Cat': 'Cat', 'a/b': 'a_b', 'cat': '_cat', 'sorted.csv': '_sorted.csv'}
    """
    taken = {folded(name) for name in (JOURNAL, TABLE, UNKNOWN, OLD_UNKNOWN, UNSURE)}
    names: dict[str, str] = {}
    for label in sorted(set(labels)):
        signs = ("_" if sign in '/\\:*?"<>|' or sign < " " or not can_be_named(sign) else sign for sign in label)
        name = "".join(signs).strip(". ") or "_"
        while len(os.fsencode(name)) > _LONGEST:
            name = name[:-1]
        while folded(name) in taken or folded(name).partition(".")[0].strip() in _DEVICES:
            name = f"_{name}"
        names[label] = name
        taken.add(folded(name))
    return ClassFolders(names)
