"""Take a sort back, file by file, by its journal; and see whether that can still be done."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osp.errors import printable
from osp.files import PARTIAL, reason
from osp.photos.journal import JOURNAL, TABLE, Entries, check_origin, origin_of, placed, read_journal
from osp.photos.reaching import Outside, Place, leaves, move, partial_of, reached, same_content
from osp.photos.whereabouts import Moved, moved_by_hand, place_now

if TYPE_CHECKING:
    from osp.data.source import Progress


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
    beside: int = 0
    """Files that went along with their photos, and are back too."""
    sidecars: int = 0
    """Sidecars that are what they were, or gone where there were none."""


def undo(out: Path | str, progress: Progress | None = None, *, trust_journal: bool = False) -> Undone:
    """Put every file back and take away what sorting made; may be repeated, also after a kill.

    A journal that somebody else may have written is refused without `trust_journal`. No file is put anywhere but into
    the pile that the journal names, and none is deleted unless its content was read at its old place.
    """
    out = Path(os.path.abspath(out))
    found = read_journal(out / JOURNAL)
    check_origin(out, found, trust_journal)
    entries, roots = found.entries, found.roots(trust_journal)
    old = {os.path.dirname(entry["from"]) for entry in entries if "from" in entry}
    inside = {folder for folder in old if _leads_into(out, folder)}  # a file there would be the one that is to go
    by_hand = moved_by_hand(out, entries)
    counts: Counter[str] = Counter()
    table = False
    problems: list[tuple[str, str]] = []
    ours = {out / entry["folder"] for entry in entries if "folder" in entry}  # later also what is left in them
    files = [entry for entry in reversed(entries) if "folder" not in entry and "table" not in entry]
    folders = [entry for entry in reversed(entries) if "folder" in entry]  # a person may have moved any file into any
    last = [entry for entry in reversed(entries) if "table" in entry][:1]  # while a photo is left, its table is
    for done, entry in enumerate([*files, *folders, *last], 1):
        place = str(out / str(entry.get("to") or entry.get("folder") or entry.get("table") or entry.get("from")))
        try:
            if "table" in entry:
                table = _undo_table(out, entry, keep=bool(problems)) or table
            elif "folder" in entry:
                _undo_folder(out, entry, ours)
            else:
                if os.path.dirname(entry["from"]) in inside:
                    raise Left(f"its old place {entry['from']} leads into this folder by now")
                undone = (
                    undo_sidecar(out, entry, roots)
                    if entry["action"] == "xmp"
                    else undo_one(out, entry, roots, by_hand)
                )
                counts["with" if "with" in entry else entry["action"]] += undone
        except (Left, Outside, OSError) as left:
            ours.add(Path(place))
            problems.append((place, reason(left) if isinstance(left, OSError) else str(left)))
        if progress:
            progress(done, len(entries), "Putting back")
    if not problems:
        (out / JOURNAL).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other things are in it
            out.rmdir()
    restored = counts["link"] + counts["copy"] + counts["move"]
    return Undone(restored, counts["move"], tuple(problems), table, counts["with"], counts["xmp"])


class Left(Exception):
    """Why something was left as it is."""


def _undo_folder(out: Path, entry: dict[str, Any], ours: set[Path]) -> None:
    """Take a folder away; one that still holds something else than `ours`, which was told of, is named."""
    with reached(out, placed(entry)) as folder, contextlib.suppress(FileNotFoundError):
        if folder.is_link():
            raise Left("it is a link, not the folder that was made")
        if folder.status() is None:
            return
        try:
            folder.rmdir()
        except OSError:
            if any(path not in ours for path in Path(folder.path).rglob("*")):
                raise Left("not empty: it holds files that were not put there by sorting") from None


def _undo_table(out: Path, entry: dict[str, Any], keep: bool) -> bool:
    """Take the table away, unless it is to be kept; whether it was there."""
    for partial in out.glob(f".{TABLE}.*{PARTIAL}"):
        partial.unlink(missing_ok=True)
    with reached(out, placed(entry)) as table:
        if keep or table.status() is None:
            return False
        if not table.is_file() or table_changed(out, [entry]):
            raise Left("it is not the table that was written, or was changed since: take it away, and undo again")
        table.remove()
        return True


def table_changed(out: Path, entries: list[dict[str, Any]]) -> bool:
    """Whether a person has written into the table that was written last."""
    written: dict[str, Any] = next((entry for entry in reversed(entries) if "table" in entry), {})
    with reached(out, TABLE) as table:
        return "content" in written and table.is_file() and table.content() != written["content"]


def undo_one(out: Path, entry: dict[str, Any], roots: list[str], by_hand: Moved) -> int:
    """Take one operation back, whether it was begun, finished or already taken back."""
    root, relative = origin_of(entry["from"], roots)
    place = place_now(entry, by_hand)
    with reached(out, place) as target, reached(root, relative) as source:
        partial_of(target).remove()
        if partial_of(source).status() is not None:  # an earlier undo was killed while it copied back: it is still here
            if target.is_file() and _is_empty(source):
                source.remove()
            partial_of(source).remove()
        if target.status() is None:
            if source.status() is None:
                raise Left(f"neither here nor at its old place {source.path}")
            return 0
        if entry["action"] == "link":
            if not target.is_link() or target.readlink() != entry["from"]:
                raise Left("it is not the link that was made")
            target.remove()
            return 1
        if not target.is_file():
            raise Left("it is not the file that was put there")
        if source.status() is not None:
            if not _is_original(out, entry, target, source):
                raise Left(_why_not(entry, source))
            target.remove()
            return 1
        if entry["action"] == "copy":
            raise Left(f"its original {source.path} is gone")
    with reached(out, place) as target, reached(root, relative, make=True) as source:
        try:
            move(target, source)
        except FileExistsError:
            raise Left(f"another file has taken its old place {source.path}") from None
    return 1


def undo_sidecar(out: Path, entry: dict[str, Any], roots: list[str]) -> int:
    """Bring a sidecar back to what it was, or delete it where there was none; one that was changed since is left."""
    with reached(*origin_of(entry["from"], roots)) as sidecar:
        partial_of(sidecar).remove()
        ours = sidecar.is_file() and (_is_empty(sidecar) or sidecar.content() == entry.get("content"))
        changed = Left(f"the sidecar {sidecar.path} was changed after it was sorted, and is left as it is")
        if not entry["to"]:
            if sidecar.status() is None:
                return 0
            if not ours:
                raise changed
            sidecar.remove()
            return 1
        with reached(out, placed(entry)) as kept:
            partial_of(kept).remove()
            if not kept.is_file():
                if ours:
                    raise Left(f"what the sidecar {sidecar.path} was before is gone")
                return 0
            if ours:
                sidecar.remove()
            elif sidecar.status() is not None:
                if not leaves(kept, sidecar):
                    raise changed
                kept.remove()
                return 0
            move(kept, sidecar)
            return 1


def _leads_into(out: Path, path: str) -> bool:
    """Whether a path is that of the folder, or of something in it, once all links are followed."""
    return os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(out), ""))


def _is_empty(place: Place) -> bool:
    status = place.status()
    return status is not None and stat.S_ISREG(status.st_mode) and not status.st_size


def _is_original(out: Path, entry: dict[str, Any], target: Place, source: Place) -> bool:
    """Whether what is at the old place keeps the content, so that the file here may go."""
    if source.is_link():
        # only where it was the same link when it was sorted, and leads to a file elsewhere
        same = entry["action"] == "copy" and entry.get("link") == source.readlink()
        return same and not _leads_into(out, source.path) and same_content(target, source, follow=True)
    if _is_empty(target) and entry["size"]:  # killed before it was filled
        return source.is_file()
    return leaves(target, source)


def _why_not(entry: dict[str, Any], source: Place) -> str:
    if source.is_link():
        return f"at its old place {source.path} is a link, and no photo; it is left here"
    if entry["action"] == "copy":
        return "it was changed after it was sorted, and is left here"
    return f"another file has taken its old place {source.path}"


def check_sorted(out: Path) -> tuple[Entries, list[str], Moved]:
    """The journal of a sort, which of its files could not be put back, and which a person has moved inside it."""
    out = Path(os.path.abspath(out))
    found = read_journal(out / JOURNAL)
    problems = [f"{JOURNAL}: line {number} is damaged" for number in found.damaged]
    roots, by_hand = found.roots(trusted=True), moved_by_hand(out, found.entries)
    for entry in found.entries:
        if "folder" in entry or "table" in entry or (entry["action"] == "xmp" and not entry["to"]):
            continue
        try:
            place, origin = place_now(entry, by_hand), origin_of(entry["from"], roots)
            with reached(out, place) as target, reached(*origin) as source:
                if wrong := _lost(entry, target, source):
                    problems.append(f"{printable(entry['to'])}: {printable(wrong)}")
        except Outside as error:
            problems.append(f"{JOURNAL}: {printable(error)}")
        except OSError as error:
            problems.append(f"{printable(entry['to'])}: {reason(error)}")
    return found, problems, by_hand


def _lost(entry: dict[str, Any], target: Place, source: Place) -> str:
    """What is wrong with a sorted file; nothing where it is in its new place, or back in the old one."""
    status = target.status()
    if entry["action"] == "xmp":
        ours = source.is_file() and source.content() == entry.get("content")
        return "what the sidecar was before is gone" if ours and not target.is_file() else ""
    if status is None:
        return "" if source.status() is not None else f"neither here nor at its old place {source.path}"
    if entry["action"] == "link":
        if not target.is_link() or target.readlink() != entry["from"]:
            return "it is not the link that was made"
        return "" if os.path.exists(source.path) else f"the photo that it leads to is gone: {source.path}"
    if not target.is_file():
        return "it is not the file that was put there"
    if status.st_size != entry["size"]:
        return f"it has {status.st_size:,} bytes and had {entry['size']:,} when it was sorted"
    return _why_not(entry, source) if source.is_link() and entry.get("link") != source.readlink() else ""
