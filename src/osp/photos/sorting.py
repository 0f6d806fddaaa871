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
import csv
import errno
import filecmp
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osp.errors import UserError, suggest
from osp.files import PARTIAL, replace

Action = Literal["csv", "link", "copy", "move"]
ACTIONS: tuple[Action, ...] = ("csv", "link", "copy", "move")
Progress = Callable[[int, int, str], None]

JOURNAL, TABLE = "sort-journal.jsonl", "sorted.csv"
COLUMNS = ("file", "class", "probability", "ood_score", "decision", "place")


@dataclass(frozen=True)
class Decision:
    """What a classifier says of one image."""

    file: str
    label: str
    probability: float
    ood_score: float
    inside: bool
    """One of the classes, rather than foreign."""


@dataclass(frozen=True)
class Sorted:
    """What was done."""

    counts: dict[str, int]
    """Images per folder of `out`."""
    table: Path
    failed: tuple[tuple[str, str], ...]
    """(file, reason) of those that stayed where they were."""


@dataclass(frozen=True)
class Undone:
    """What was put back."""

    restored: int
    problems: tuple[tuple[str, str], ...]
    """(file in `out`, reason) of what was left as it is; with any, the journal stays."""


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
    earlier = [entry for entry in _read_journal(out / JOURNAL) if "row" in entry] if (out / JOURNAL).exists() else []
    earlier = [entry for entry in earlier if os.path.lexists(out / entry["to"])]
    given = {os.path.abspath(decision.file) for decision in ordered}
    rows: list[Sequence[str]] = [entry["row"] for entry in earlier if entry["from"] not in given]
    there = {entry["from"]: entry for entry in earlier if entry["action"] == action}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _Journal(out / JOURNAL) as journal:
            for done, (decision, folder) in enumerate(zip(ordered, places, strict=True), 1):
                row = _row(decision, sure)
                place = ""
                if action != "csv":
                    try:
                        begun = there.get(os.path.abspath(decision.file))
                        place = _finished(out, begun) if begun else ""
                        place = place or _place(decision.file, folder, out, action, journal, row)
                    except OSError as error:
                        failed.append((decision.file, _reason(error)))
                if action == "csv" or place:
                    counts[folder] = counts.get(folder, 0) + 1
                rows.append([*row, defused(place or folder)])
                if progress:
                    progress(done, len(ordered), "Sorting")
            journal.write({"table": TABLE})
            _write_table(out / TABLE, [COLUMNS, *rows])
    except OSError as error:
        raise UserError(f"The folder {out} cannot be written: {_reason(error)}.") from None
    return Sorted(counts, out / TABLE, tuple(failed))


def undo(out: Path | str, progress: Progress | None = None) -> Undone:
    """Put every file back and take away what sorting made; may be repeated, also after a kill."""
    out = Path(os.path.abspath(out))
    entries = _read_journal(out / JOURNAL)
    restored, problems = 0, []
    for done, entry in enumerate(reversed(entries), 1):
        try:
            restored += _undo_one(out, entry)
        except _Left as left:
            problems.append((str(out / str(entry.get("to", ""))), str(left)))
        except OSError as error:
            problems.append((str(out / str(entry.get("to", ""))), _reason(error)))
        if progress:
            progress(done, len(entries), "Putting back")
    if not problems:
        (out / JOURNAL).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other things are in it
            out.rmdir()
    return Undone(restored, tuple(problems))


class _Left(Exception):
    """Why something was left as it is."""


class _Journal:
    """Lines of JSON, each on the disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Journal:
        self._file = open(self._path, "a+b")
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":  # a line cut short: its operation was never begun
                self._file.write(b"\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode("ascii") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _read_journal(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise UserError(f"There is nothing to undo: {path.parent} has no {JOURNAL}.") from None
    except OSError as error:
        raise UserError(f"The journal {path} cannot be read: {_reason(error)}.") from None
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError):  # cut short by a kill
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


def _check(out: Path, decisions: Sequence[Decision]) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file. Name a new or empty folder to sort into.")
    real = os.path.realpath(out)
    for decision in decisions:
        if os.path.realpath(decision.file).startswith(real + os.sep):
            raise UserError(f"{decision.file} lies inside {out}. Name a folder outside the pile to sort into.")
    with contextlib.suppress(FileNotFoundError):
        if not (out / JOURNAL).is_file() and any(out.iterdir()):
            raise UserError(f"The folder {out} is not empty. Name a new or empty folder to sort into.")


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


def _place(file: str, folder: str, out: Path, action: Action, journal: _Journal, row: list[str]) -> str:
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
                _copy(source, target)
            else:
                _move(source, target)
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


def _move(source: str | Path, target: str | Path) -> None:
    """Rename without ever overwriting, to another disk too."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # another disk, or one without hard links
        _copy(source, target)
    os.unlink(source)


def _partial(target: str | Path) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name[:200]}.osp-partial")


def _copy(source: str | Path, target: str | Path) -> None:
    """Copy with times; the target appears whole or not at all, and never replaces another file."""
    partial = _partial(target)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    try:
        with open(source, "rb") as given, open(partial, "xb") as made:
            shutil.copyfileobj(given, made, 1 << 20)
            made.flush()
            os.fsync(made.fileno())
        shutil.copystat(source, partial)
        try:
            os.link(partial, target)
        except FileExistsError:
            raise
        except OSError:  # a disk without hard links: take the name first, then fill it
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.replace(partial, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _undo_one(out: Path, entry: dict[str, Any]) -> int:
    """Take one operation back, whether it was begun, finished or already taken back."""
    if "folder" in entry:
        folder = _below(out, entry["folder"])
        with contextlib.suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:
                if folder.is_dir() and any(folder.iterdir()):
                    raise _Left("not empty: it holds files that were not put there by sorting") from None
        return 0
    if "table" in entry:
        for left in [_below(out, entry["table"]), *out.glob(f".{TABLE}.*{PARTIAL}")]:
            left.unlink(missing_ok=True)
        return 0
    source, target = str(entry["from"]), _below(out, entry["to"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_partial(target))
    if os.path.lexists(_partial(source)):  # an earlier undo was killed while it copied back: the file is still here
        if os.path.lexists(target) and os.path.lexists(source) and not os.path.getsize(source):
            os.unlink(source)
        os.unlink(_partial(source))
    if not os.path.lexists(target):
        if not os.path.lexists(source):
            raise _Left(f"neither here nor at its old place {source}")
        return 0
    if entry["action"] == "link":
        if not target.is_symlink() or os.readlink(target) != source:
            raise _Left("it is not the link that was made")
        target.unlink()
        return 1
    if os.path.lexists(source):
        if os.path.samefile(source, target):  # killed between the new name and the loss of the old one
            target.unlink()
            return 1
        size = target.stat().st_size
        if (size == 0 and entry["size"]) or filecmp.cmp(source, target, shallow=False):
            target.unlink()
            return 1
        if entry["action"] == "copy":
            raise _Left("it has been changed since")
        raise _Left(f"another file has taken its old place {source}")
    if entry["action"] == "copy":
        raise _Left(f"its original {source} is gone")
    os.makedirs(os.path.dirname(source), exist_ok=True)
    try:
        _move(target, source)
    except FileExistsError:
        raise _Left(f"another file has taken its old place {source}") from None
    return 1


def _below(out: Path, relative: Any) -> Path:
    """A journal from elsewhere must not reach outside its folder."""
    path = Path(os.path.normpath(out / str(relative)))
    if out not in path.parents:
        raise _Left(f"the journal names {relative!r}, which is outside the folder")
    return path


def _row(decision: Decision, sure: float) -> list[str]:
    verdict = "out" if not decision.inside else "in" if decision.probability >= sure else "unsure"
    numbers = (f"{decision.probability:.4f}", f"{decision.ood_score:.4f}")
    return [defused(decision.file), defused(decision.label), *numbers, verdict]


def defused(text: str) -> str:
    """Text that a spreadsheet will not run as a formula: those that begin like one get an apostrophe.

    >>> defused("=1+1.jpg"), defused("cat.jpg")
    ("'=1+1.jpg", 'cat.jpg')
    """
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else text


def _write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    # names that are no valid text keep a mark where the odd byte was: a table must open everywhere
    replace(path, text.getvalue().encode("utf-8", "replace"))


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
