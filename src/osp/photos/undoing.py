"""Take a sort back, file by file, by its journal; and see whether that can still be done."""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osp.errors import printable
from osp.files import PARTIAL
from osp.photos.journal import JOURNAL, TABLE, Entries, Outside, below, read_journal, reason
from osp.photos.moving import move, partial_name

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Undone:
    """What was put back."""

    restored: int
    moved: int
    """Those of them that were moved back; the others were links or copies, and are gone."""
    problems: tuple[tuple[str, str], ...]
    """(file in `out`, reason) of what was left as it is; with any, journal and table stay."""
    table: bool = False
    """A table was taken away."""


def undo(out: Path | str, progress: Progress | None = None) -> Undone:
    """Put every file back and take away what sorting made; may be repeated, also after a kill."""
    out = Path(os.path.abspath(out))
    entries = read_journal(out / JOURNAL).entries
    restored, moved, table = 0, 0, False
    problems: list[tuple[str, str]] = []
    ours = {out / entry["folder"] for entry in entries if "folder" in entry}  # later also what is left in them
    last = [entry for entry in reversed(entries) if "table" in entry]  # while a photo is left, its table is
    for done, entry in enumerate([*(entry for entry in reversed(entries) if "table" not in entry), *last], 1):
        place = str(out / str(entry.get("to") or entry.get("folder") or entry.get("table")))
        try:
            if "table" in entry:
                table = _undo_table(out, entry, keep=bool(problems)) or table
            elif "folder" in entry:
                _undo_folder(out, entry, ours)
            else:
                count = _undo_one(out, entry)
                restored += count
                moved += count if entry["action"] == "move" else 0
        except (_Left, Outside, OSError) as left:
            ours.add(Path(place))
            problems.append((place, reason(left) if isinstance(left, OSError) else str(left)))
        if progress:
            progress(done, len(entries), "Putting back")
    if not problems:
        (out / JOURNAL).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other things are in it
            out.rmdir()
    return Undone(restored, moved, tuple(problems), table)


class _Left(Exception):
    """Why something was left as it is."""


def _undo_folder(out: Path, entry: dict[str, Any], ours: set[Path]) -> None:
    """Take a folder away; one that still holds something else than `ours`, which was told of, is named."""
    folder = below(out, entry["folder"])
    with contextlib.suppress(FileNotFoundError):
        try:
            folder.rmdir()
        except OSError:
            if any(path not in ours for path in folder.rglob("*")):
                raise _Left("not empty: it holds files that were not put there by sorting") from None


def _undo_table(out: Path, entry: dict[str, Any], keep: bool) -> bool:
    """Take the table away, unless it is to be kept; whether it was there."""
    table = below(out, entry["table"])
    for partial in out.glob(f".{TABLE}.*{PARTIAL}"):
        partial.unlink(missing_ok=True)
    if keep or not os.path.lexists(table):
        return False
    table.unlink()
    return True


def _undo_one(out: Path, entry: dict[str, Any]) -> int:
    """Take one operation back, whether it was begun, finished or already taken back."""
    source, target = str(entry["from"]), below(out, entry["to"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial_name(target))
    if os.path.lexists(partial_name(source)):  # an earlier undo was killed while it copied back: the file is still here
        if os.path.lexists(target) and os.path.lexists(source) and not os.path.getsize(source):
            os.unlink(source)
        os.unlink(partial_name(source))
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
            raise _Left("it was changed after it was sorted, and is left here")
        raise _Left(f"another file has taken its old place {source}")
    if entry["action"] == "copy":
        raise _Left(f"its original {source} is gone")
    os.makedirs(os.path.dirname(source), exist_ok=True)
    try:
        move(target, source)
    except FileExistsError:
        raise _Left(f"another file has taken its old place {source}") from None
    return 1


def check_sorted(out: Path) -> tuple[Entries, list[str]]:
    """The journal of a sort, and which of its files could not be put back: (what it says, problems)."""
    found = read_journal(out / JOURNAL)
    problems = [f"{JOURNAL}: line {number} is damaged" for number in found.damaged]
    for entry in found.entries:
        if "folder" in entry or "table" in entry:
            continue
        try:
            if wrong := _lost(entry, below(out, entry["to"])):
                problems.append(f"{printable(entry['to'])}: {printable(wrong)}")
        except Outside as error:
            problems.append(f"{JOURNAL}: {printable(error)}")
        except OSError as error:
            problems.append(f"{printable(entry['to'])}: {reason(error)}")
    return found, problems


def _lost(entry: dict[str, Any], target: Path) -> str:
    """What is wrong with a sorted file; nothing where it is in its new place, or back in the old one."""
    source = entry["from"]
    if not os.path.lexists(target):
        return "" if os.path.lexists(source) else f"neither here nor at its old place {source}"
    if entry["action"] == "link":
        if not target.is_symlink() or os.readlink(target) != source:
            return "it is not the link that was made"
        return "" if os.path.exists(source) else f"the photo that it leads to is gone: {source}"
    if target.is_symlink() or not target.is_file():
        return "it is not the file that was put there"
    size = target.stat().st_size
    return "" if size == entry["size"] else f"it has {size:,} bytes and had {entry['size']:,} when it was sorted"
