"""Sort a pile into folders by class and by doubt: as a table, links, copies, moves, or keywords; all can be undone.

    out/cat/...  out/dog/...     surely one of the classes
    out/_unsure/cat/...          probably, but look at them
    out/_unknown/group-01/...    none of the classes; groups that look alike, the largest first
    out/_unknown/...             none of the classes, and of no group
    out/sorted.csv               file, class, probability, OOD score and place of every image
    out/sort-journal.jsonl       what was done, for undo
    out/_sidecars/...            XMP files that were there before, as they were

Nothing is ever overwritten: a file gets its new name by a hard link, which fails where the name is taken, and loses
its old name only then. Each operation is in the journal, on the disk, before it is begun; whatever a killed process
leaves behind, `undo` finds there and puts right.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osp.errors import UserError, printable, suggest
from osp.files import reason
from osp.models.model import Prediction
from osp.photos.class_folders import UNKNOWN, UNSURE, class_folders
from osp.photos.companions import Companions, renamed
from osp.photos.journal import (
    JOURNAL,
    SIDECARS,
    TABLE,
    Entries,
    Journal,
    check_origin,
    has_journal,
    origin_of,
    placed,
    read_journal,
)
from osp.photos.reaching import Outside, Place, copy, leaves, move, reached, rewrite, same_content
from osp.photos.sidecars import LARGEST, merged
from osp.photos.undoing import Left, table_changed, undo_one, undo_sidecar
from osp.photos.whereabouts import Moved, is_there, moved_by_hand, place_now
from osp.tables import defused, fused, write_table

if TYPE_CHECKING:
    from osp.data.source import Progress

Action = Literal["csv", "link", "copy", "move", "xmp"]
ACTIONS: tuple[Action, ...] = ("csv", "link", "copy", "move", "xmp")

COLUMNS = ("file", "class", "probability", "ood_score", "decision", "sure", "place")


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
    beside: int = 0
    """Files that went along with their photos."""


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
    """Place every image under `out`; accepted images that are less than `sure` go to the unsure ones.

    A sort that was cut short goes on when it is repeated: what is already in its place is not placed again. All images
    lie in the folder `pile`, by default the folder that they have in common: `undo` puts nothing anywhere else.
    `trust_journal` goes on in a folder whose journal somebody else may have written.
    """
    if action not in ACTIONS:
        raise UserError(f"action={action!r} is unknown.{suggest(action, ACTIONS)}")
    out = Path(os.path.abspath(out))
    ordered = sorted(decisions, key=lambda d: (not d.inside, d.group, d.label, -d.probability, d.ood_score, d.file))
    _check(out, ordered)
    root = os.path.abspath(pile) if pile is not None else _common(ordered, out)
    folders = class_folders(decision.label for decision in ordered)
    counts: Counter[str] = Counter()
    noted = read_journal(out / JOURNAL) if has_journal(out) else Entries()
    check_origin(out, noted, trust_journal)
    if table_changed(out, noted.entries):
        raise UserError(f"{printable(out / TABLE)} was changed after it was written: rename it, a new one is written.")
    moved = moved_by_hand(out, noted.entries)
    rows: list[Sequence[str]] = []
    given = {os.path.abspath(decision.file) for decision in ordered}
    there = {each["from"]: each for each in noted.entries if "row" in each and _is_placed(out, each, moved)}
    for source, entry in there.items():
        if source not in given:
            place = place_now(entry, moved)
            cells = [fused(cell) for cell in entry["row"][:-1]]
            unsaid = [""] * (len(COLUMNS) - 1 - len(cells))  # by earlier versions: how sure
            rows.append([*cells, *unsaid, place])
            counts[_folder(place)] += 1
    try:
        out.mkdir(parents=True, exist_ok=True)
        with Journal(out / JOURNAL, root) as journal:
            work = _Work(out, root, action, journal, noted.entries, there, moved, len(rows))
            work.bring_along([each for each in noted.entries if "with" in each])
            for done, decision in enumerate(ordered, 1):
                folder = folders.place(decision.label, decision.inside, decision.sure >= sure, decision.group)
                row = _row(decision, sure)
                place = work.sort(decision, folder, row)
                if place:
                    counts[folder if place == folder else _folder(place)] += 1
                rows.append([*row, place])
                if progress:
                    progress(done, len(ordered), "Sorting")
            journal.write({"table": TABLE})
            write_table(out / TABLE, COLUMNS, rows)
            with reached(out, TABLE) as table:
                journal.write({"table": TABLE, "content": table.content()})
    except OSError as error:
        raise UserError(f"The folder {out} cannot be written: {reason(error)}.") from None
    return Sorted(dict(counts), out / TABLE, tuple(work.failed), work.earlier, work.beside)


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


def _is_placed(out: Path, entry: dict[str, Any], moved: Moved) -> bool:
    return (entry["from"], entry["to"]) in moved or is_there(out, entry)


@dataclass
class _Work:
    """One sort: what is done to each file, and what came of it."""

    out: Path
    root: str
    """The pile."""
    action: Action
    journal: Journal
    noted: list[dict[str, Any]]
    """What earlier calls have written in the journal."""
    there: dict[str, dict[str, Any]]
    """Lines of the journal on photos that an earlier call has placed, by where they come from."""
    moved: Moved
    earlier: int
    beside: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    companions: Companions = field(default_factory=Companions)

    def __post_init__(self) -> None:
        self._names = {each["to"]: each["from"] for each in self.noted if each.get("to")}
        """Places that earlier calls have used, and for what: nothing else gets them, so that each can be undone."""
        self._tagged = {each["from"]: each for each in self.noted if each.get("action") == "xmp"}

    def sort(self, decision: Prediction, folder: str, row: list[str]) -> str:
        """The place of a photo below `out`, or its folder where it stays; nothing where it could not be placed."""
        try:
            if self.action == "csv":
                return folder
            if self.action == "xmp":
                self._tag(f"{os.path.abspath(decision.file)}.xmp", folder, decision.label)
                return folder
            if begun := self.there.get(os.path.abspath(decision.file)):
                stays = begun["action"] == "move" or (begun["from"], begun["to"]) in self.moved
                fits = begun["action"] == self.action and (stays or _folder(begun["to"]) == folder)
                if fits and (place := self._finished(begun)):
                    self.earlier += 1
                    return place
                if not stays:
                    with contextlib.suppress(Left):  # changed since: it is kept, beside the new one
                        undo_one(self.out, begun, [self.root], self.moved)
            return self._place(decision, folder, row)
        except (OSError, Outside) as error:
            self.failed.append((decision.file, reason(error) if isinstance(error, OSError) else str(error)))
            return ""

    def bring_along(self, entries: Iterable[dict[str, Any]]) -> None:
        """Move the files that belong to a photo to where it is."""
        for entry in entries:
            try:
                with self._source(entry["from"]) as source, reached(self.out, placed(entry)) as target:
                    if source.status() is None or entry["with"] not in self.there:  # done, or the photo has stayed
                        continue
                    move(source, target)
                    self.beside += 1
            except (OSError, Outside) as error:
                why = reason(error) if isinstance(error, OSError) else str(error)
                self.failed.append((entry["from"], why))

    def _source(self, path: str) -> contextlib.AbstractContextManager[Place]:
        return reached(*origin_of(path, [self.root]))

    def _place(self, decision: Prediction, folder: str, row: list[str]) -> str:
        """Link, copy or move one file to the first free name, and what belongs to it."""
        path = os.path.abspath(decision.file)
        with self._source(path) as source:
            status = source.status()
            if status is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            linked = stat.S_ISLNK(status.st_mode)
            if self.action == "move" and linked:
                raise OSError(errno.EINVAL, "it is a link, which would break when moved")
            entry = {"action": self.action, "from": path, "size": os.stat(path).st_size if linked else status.st_size}
            if self.action != "link":
                entry["content"] = decision.content or source.content(linked)
            if self.action == "copy" and linked:
                entry["link"] = source.readlink()  # it was one before: undo then accepts it as the original
            along = self._along(source) if self.action == "move" else []
            self._make_folders(folder)
            name, number = os.path.basename(path), 0
            while True:
                number += 1
                new = _numbered(name, number)
                to = os.path.join(*folder.split("/"), new)
                beside = [
                    {**each, "to": os.path.join(*folder.split("/"), renamed(os.path.basename(each["from"]), name, new))}
                    for each in along
                ]
                names = {to: path} | {each["to"]: each["from"] for each in beside}
                with reached(self.out, to) as target:
                    if any(self._names.get(place, old) != old for place, old in names.items()):
                        continue
                    if any(target.beside(os.path.basename(place)).status() for place in names):
                        continue
                    line = {**entry, "to": to, "row": [*(defused(cell) for cell in row), defused(to)]}
                    self.journal.write(line, *beside)
                    try:
                        if self.action == "link":
                            target.symlink(path)
                        elif self.action == "copy":
                            copy(source, target, follow=linked)
                        else:
                            move(source, target)
                    except FileExistsError:  # made by somebody else meanwhile
                        continue
                self.there[path] = line
                self.bring_along(beside)
                return to

    def _along(self, photo: Place) -> list[dict[str, Any]]:
        """Lines for the files that belong to a photo, without their new places."""
        found = []
        for name in self.companions.of(photo.path):
            other = photo.beside(name)
            status = other.status()
            if status is not None and stat.S_ISREG(status.st_mode):
                found.append({"action": "move", "from": other.path, "size": status.st_size, "with": photo.path})
        return found

    def _make_folders(self, folder: str) -> None:
        parts = folder.split("/")
        for depth in range(1, len(parts) + 1):
            relative = os.path.join(*parts[:depth])
            with reached(self.out, relative) as place:
                if place.status() is None:
                    self.journal.write({"folder": relative})
                    with contextlib.suppress(FileExistsError):
                        place.mkdir()

    def _finished(self, entry: dict[str, Any]) -> str:
        """The place of a file that an earlier call has put there, a move brought to its end; empty where there is
        none."""
        place = place_now(entry, self.moved)
        with self._source(entry["from"]) as source, reached(self.out, place) as target:
            if self.action == "link":
                return place if target.is_link() and target.readlink() == entry["from"] else ""
            if self.action == "copy":
                return place if target.is_file() and same_content(target, source, follow=True) else ""
            if not leaves(source, target):
                return ""
            source.remove()
            return place

    def _tag(self, path: str, folder: str, label: str) -> None:
        """Put the folder of a photo into its sidecar, whose earlier content is kept for undo; what an earlier call has
        put there is taken out."""
        keyword = label if folder.partition("/")[0] not in (UNKNOWN, UNSURE) else folder.partition("/")[0]
        keywords = keyword, f"osp|{folder.replace('/', '|')}"
        with self._source(path) as sidecar:
            before, old = _sidecar(sidecar)
            if (tagged := self._tagged.get(path)) and old is not None and _digest(old) == tagged["content"]:
                with reached(self.out, placed(tagged)) if tagged["to"] else contextlib.nullcontext() as kept:
                    first = None if kept is None else _sidecar(kept)[1]
                if merged(first, *keywords) == old:
                    return
                with contextlib.suppress(Left):  # what was there before it is gone
                    undo_sidecar(self.out, tagged, [self.root])
                before, old = _sidecar(sidecar)
            new = merged(old, *keywords)
            if new == old:
                return
            entry = {"action": "xmp", "from": path, "to": "", "size": len(new), "content": _digest(new)}
            if old is None:
                self.journal.write(entry)
                rewrite(sidecar, new, None)
                return
            self._make_folders(SIDECARS)
            name = os.path.basename(path)
            for number in itertools.count(1):
                to = os.path.join(SIDECARS, _numbered(name, number))
                with reached(self.out, to) as kept:
                    if kept.status() is None and self._names.get(to, path) == path:
                        self.journal.write({**entry, "to": to})
                        copy(sidecar, kept)
                        rewrite(sidecar, new, before)
                        return


def _sidecar(place: Place) -> tuple[os.stat_result | None, bytes | None]:
    """Status and content; nothing where there is none."""
    status = place.status()
    if status is None:
        return None, None
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise OSError(errno.EINVAL, "its sidecar is a link, no file, or too large")
    with place.open() as file:
        return status, file.read(LARGEST)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _numbered(name: str, number: int) -> str:
    """A name with a number, and no longer than some disk can have.

    >>> _numbered("x.jpg", 1), _numbered("x.jpg", 2)
    ('x.jpg', 'x (2).jpg')
    """
    if number == 1:
        return name
    (stem, kind), tail = os.path.splitext(name), f" ({number})"
    room = max(len(os.fsencode(stem)), 200)
    while len(os.fsencode(stem)) + len(tail) > room:
        stem = stem[:-1]
    return f"{stem}{tail}{kind}"


def _folder(place: str) -> str:
    """The folder of a place below `out`, with / between its parts."""
    return Path(place).parent.as_posix()


def _row(decision: Prediction, sure: float) -> list[str]:
    verdict = "out" if not decision.inside else "in" if decision.sure >= sure else "unsure"
    numbers = (f"{decision.probability:.4f}", f"{decision.ood_score:.4f}")
    return [decision.file, decision.label, *numbers, verdict, f"{decision.sure:.4f}"]
