"""Sort a pile into folders by class and by doubt: as a table, links, copies, or moves that can be undone.

    out/cat/...  out/dog/...     surely one of the classes
    out/_unsure/cat/...          probably, but look at them
    out/_foreign/...             none of the classes
    out/sorted.csv               file, class, probability, OOD score and place of every image
    out/sort-journal.jsonl       what was done, for undo

Nothing is ever overwritten: a file gets its new name by a hard link, which fails where the name is taken, and loses
its old name only then. Each operation is in the journal, on the disk, before it is begun; whatever a killed process
leaves behind, `undo` finds there and puts right.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osp.errors import UserError, printable, suggest
from osp.photos.decisions import Decision
from osp.photos.journal import JOURNAL, TABLE, Journal, read_journal, reason
from osp.photos.moving import copy, move
from osp.photos.tables import defused, write_table

Action = Literal["csv", "link", "copy", "move"]
ACTIONS: tuple[Action, ...] = ("csv", "link", "copy", "move")
Progress = Callable[[int, int, str], None]

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
    decisions: Iterable[Decision],
    out: Path | str,
    action: Action = "csv",
    sure: float = 0.8,
    progress: Progress | None = None,
) -> Sorted:
    """Place every image under `out`; accepted images with a probability below `sure` go to the unsure ones.

    A sort that was cut short goes on when it is repeated: what is already in its place is not placed again.
    """
    if action not in ACTIONS:
        raise UserError(f"action={action!r} is unknown.{suggest(action, ACTIONS)}")
    out = Path(os.path.abspath(out))
    ordered = sorted(decisions, key=lambda d: (not d.inside, d.label, -d.probability, d.ood_score, d.file))
    _check(out, ordered)
    places = _places(ordered, sure)
    counts: dict[str, int] = {}
    failed: list[tuple[str, str]] = []
    noted = read_journal(out / JOURNAL).entries if (out / JOURNAL).exists() else []
    earlier = [entry for entry in noted if "row" in entry and os.path.lexists(out / entry["to"])]
    given = {os.path.abspath(decision.file) for decision in ordered}
    before = {entry["from"]: entry for entry in earlier if entry["from"] not in given}
    rows: list[Sequence[str]] = [entry["row"] for entry in before.values()]
    for entry in before.values():
        folder = _folder(entry["to"])
        counts[folder] = counts.get(folder, 0) + 1
    already = len(before)
    there = {entry["from"]: entry for entry in earlier if entry["action"] == action}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with Journal(out / JOURNAL) as journal:
            for done, (decision, folder) in enumerate(zip(ordered, places, strict=True), 1):
                row = _row(decision, sure)
                place = ""
                if action != "csv":
                    try:
                        begun = there.get(os.path.abspath(decision.file))
                        place = _finished(out, begun) if begun else ""
                        already += bool(place)
                        place = place or _place(decision.file, folder, out, action, journal, row)
                    except OSError as error:
                        failed.append((decision.file, reason(error)))
                if action == "csv" or place:
                    folder = _folder(place) if place else folder
                    counts[folder] = counts.get(folder, 0) + 1
                rows.append([*row, defused(place or folder)])
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


def _check(out: Path, decisions: Sequence[Decision]) -> None:
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
        if not (out / JOURNAL).is_file() and any(out.iterdir()):
            raise UserError(f"The folder {shown} is not empty. Name a new or empty folder to sort into.")


def _places(decisions: Sequence[Decision], sure: float) -> list[str]:
    """The folder of each image below `out`, with / between its parts."""
    labels = {decision.label for decision in decisions}
    names: dict[str, str] = {}
    for label in sorted(labels):
        name = "".join("_" if sign in '/\\:*?"<>|\0' or sign < " " else sign for sign in label).strip(". ") or "_"
        names[label] = _unused(name, set(names.values()))
    foreign, unsure = (_unused(name, set(names.values())) for name in ("_foreign", "_unsure"))

    def place(decision: Decision) -> str:
        if not decision.inside:
            return foreign
        name = names[decision.label]
        return name if decision.probability >= sure else f"{unsure}/{name}"

    return [place(decision) for decision in decisions]


def _unused(name: str, taken: set[str]) -> str:
    while name.casefold() in {other.casefold() for other in taken}:
        name = f"_{name}"
    return name


def _place(file: str, folder: str, out: Path, action: Action, journal: Journal, row: list[str]) -> str:
    """Link, copy or move one file to the first free name; returns its place below `out`."""
    source = os.path.abspath(file)
    status = os.stat(source)
    if action == "move" and os.path.islink(source):
        raise OSError(errno.EINVAL, "it is a link, which would break when moved")
    parent = out
    for part in folder.split("/"):
        parent = parent / part
        if not parent.is_dir():
            journal.write({"folder": os.path.relpath(parent, out)})
            parent.mkdir(exist_ok=True)
    name, number = Path(source).name, 1
    while True:
        target = parent / (name if number == 1 else f"{Path(name).stem} ({number}){Path(name).suffix}")
        number += 1
        if os.path.lexists(target):
            continue
        to = os.path.relpath(target, out)
        entry = {"action": action, "from": source, "to": to, "size": status.st_size}
        journal.write({**entry, "row": [*row, defused(to)]})
        try:
            if action == "link":
                os.symlink(source, target)
            elif action == "copy":
                copy(source, target)
            else:
                move(source, target)
        except FileExistsError:  # made by somebody else meanwhile
            continue
        return to


def _finished(out: Path, entry: dict[str, Any]) -> str:
    """The place of a file that an earlier call has put there, a move brought to its end; empty where there is none."""
    source, target = entry["from"], out / entry["to"]
    if entry["action"] == "link":
        return str(entry["to"]) if target.is_symlink() and os.readlink(target) == source else ""
    if not os.path.samefile(source, target) and not filecmp.cmp(source, target, shallow=False):
        return ""
    if entry["action"] == "move":
        os.unlink(source)
    return str(entry["to"])


def _folder(place: str) -> str:
    """The folder of a place below `out`, with / between its parts."""
    return Path(place).parent.as_posix()


def _row(decision: Decision, sure: float) -> list[str]:
    verdict = "out" if not decision.inside else "in" if decision.probability >= sure else "unsure"
    numbers = (f"{decision.probability:.4f}", f"{decision.ood_score:.4f}")
    return [defused(decision.file), defused(decision.label), *numbers, verdict]
