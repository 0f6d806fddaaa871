"""The journal of a sort: what was done to which file, on the disk before it is done.

A line of JSON for each operation: `{"action", "from", "to", "size", "content", "row"}` for a photo, the same with the
path of its photo as `"with"` for a file that goes along, `{"folder"}` for a folder that was made, `{"table"}` for the
table, once more with its `"content"` when it is written, `{"pile"}` for the folder that the files after it come from.
The action `xmp` is about a sidecar: `content` is what it became, and what it was is kept at the place `to`, where there
was one. Places are relative to the folder that the journal lies in. Each line has a `mark`, made with a secret from the
user's state folder. A journal without right marks is data of a stranger, and obeyed only if the user says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from osp.errors import UserError, printable
from osp.files import open_at_end, open_plain, reason
from osp.photos.reaching import Outside, can_be_named, parts_of

JOURNAL, TABLE, SIDECARS = "sort-journal.jsonl", "sorted.csv", "_sidecars"
ACTIONS = ("link", "copy", "move", "xmp")
_UNKNOWN = "it comes from another user or machine, or from an earlier version of osp"
_CHANGED = "it was changed by something other than osp"
_ELSEWHERE = "the path of its pile leads to another place than when it was sorted"
_SHOWN = 10
_KEY_SIZE = 32
_LONGEST_LINE = 1 << 18
"""Bytes; four paths of 4,096 bytes each, written out, are shorter."""


@dataclass
class Entries:
    """What a journal says."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    """Numbers of lines that are none of a journal; passed over."""
    cut_short: bool = False
    """The last line was not finished: its operation was never begun."""
    piles: list[str] = field(default_factory=list)
    """The folders that files come from."""
    strange: str = ""
    """Why it cannot be told that this user has written it; nothing where it can."""
    last: str = ""
    """The mark of the last line."""

    @property
    def unfinished(self) -> bool:
        """A sort was begun that did not come to its table."""
        return not self.entries or "table" not in self.entries[-1]

    def roots(self, trusted: bool = False) -> list[str]:
        """The folders that files may be put back into: the piles, and in a journal that the user trusts, the folder
        that all its other files come from."""
        found = list(self.piles)
        others = {os.path.dirname(each["from"]) for each in self.entries if "from" in each}
        others = {each for each in others if not any(_below(each, pile) for pile in found)}
        with contextlib.suppress(ValueError):  # none, or on several drives
            found += [os.path.commonpath(others)] if trusted else []
        return found

    def in_words(self) -> list[str]:
        """What a journal would do if it were obeyed, for whoever is asked."""
        back = Counter(os.path.dirname(each["from"]) for each in self.entries if each.get("action") == "move")
        lines = [f"put {count:,} files into {printable(folder)}" for folder, count in back.most_common(_SHOWN)]
        if len(back) > _SHOWN:
            lines.append(f"put {sum(back.values()):,} files into {len(back):,} folders in all")
        made = sum(each.get("action") in ("link", "copy") for each in self.entries)
        if tagged := sum(each.get("action") == "xmp" for each in self.entries):
            lines.append(f"bring {tagged:,} sidecars (.xmp) of photos back to what they were, or delete them")
        folders = sum("folder" in each for each in self.entries)
        return [*lines, f"take away {made:,} links or copies and {folders:,} folders below it"]


class Journal:
    """Lines of JSON, each on the disk before `write` returns."""

    def __init__(self, path: Path, pile: str) -> None:
        self._path, self._pile = path, pile

    def __enter__(self) -> Journal:
        self._file: BinaryIO = open_at_end(self._path, "a+b")
        try:
            self._key = user_key(make=True)
            self._last = read_journal(self._path).last
            if self._file.seek(0, os.SEEK_END):
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":  # a line cut short: its operation was never begun
                    self._file.write(b"\n")
            self.write({"pile": self._pile, "owner": _owner(self._file), "real": os.path.realpath(self._pile)})
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, *entries: dict[str, Any]) -> None:
        for entry in entries:
            if self._key is not None:
                self._last = mark(self._key, self._last, json.dumps(entry))
                entry = {**entry, "mark": self._last}
            self._file.write(json.dumps(entry).encode("ascii") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def has_journal(folder: Path) -> bool:
    """Whether a folder was sorted into; a link in the journal's place is refused."""
    try:
        status = os.lstat(folder / JOURNAL)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{printable(folder / JOURNAL)} is a link, or no file, and not the journal of a sort.")
    return True


def read_journal(path: Path) -> Entries:
    """The journal at this path; what cannot be read in it is passed over, and counted."""
    found, key, marked, owners, moved = Entries(), user_key(), 0, set(), False
    try:
        with open_plain(path) as file:
            owner = _owner(file)
            for number, line in enumerate(_lines(file), 1):
                if not line.strip():
                    continue
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    entry = None
                if not _is_entry(entry):
                    if line.endswith(b"\n"):
                        found.damaged.append(number)
                    else:
                        found.cut_short = True
                    continue
                given = entry.pop("mark", None)
                if key is None or given != mark(key, found.last, json.dumps(entry)):
                    found.strange = _UNKNOWN
                else:
                    marked += 1
                found.last = given if isinstance(given, str) else ""
                if "pile" in entry:
                    found.piles.append(entry["pile"])
                    owners.add(entry.get("owner", _user()))
                    moved |= entry.get("real", "") not in ("", os.path.realpath(entry["pile"]))
                else:
                    found.entries.append(entry)
    except FileNotFoundError:
        raise UserError(f"There is nothing to undo: {path.parent} has no {JOURNAL}.") from None
    except OSError as error:
        raise UserError(f"The journal {path} cannot be read: {reason(error)}.") from None
    if found.strange and marked:
        found.strange = _CHANGED
    if moved:
        found.strange = _ELSEWHERE
    if found.entries and owner not in (owners or {_user()}):  # where a disk has no owners, it says so in every journal
        found.strange = _UNKNOWN
    return found


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; in place of one that no journal can have, a short one that is damaged."""
    while line := file.readline(_LONGEST_LINE):
        too_long = len(line) == _LONGEST_LINE
        while line and len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_LINE)
        yield b"?\n" if too_long else line


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _owner(file: BinaryIO) -> int:
    """Of a file; where a disk or a system keeps none, the same for all."""
    return os.fstat(file.fileno()).st_uid


def check_origin(out: Path, found: Entries, trusted: bool) -> None:
    """Refuse to obey the journal of a folder that may be a stranger's, unless the user trusts it."""
    if found.strange and not trusted:
        raise UserError(
            f"The journal in {printable(out)} may not be yours: {found.strange}. It would\n  "
            + "\n  ".join(found.in_words())
            + "\nIf that is what you want, say so: --trust-journal"
        )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(v, str | int) for k, v in entry.items() if k != "row"):
        return False
    if "pile" in entry:
        return _is_whole(entry["pile"])
    if "folder" in entry or "table" in entry:
        return isinstance(entry.get("folder", entry.get("table")), str)
    row = entry.get("row", [])
    fits = _is_whole(entry.get("from")) and isinstance(entry.get("to"), str) and isinstance(entry.get("size"), int)
    rows = isinstance(row, list) and all(isinstance(cell, str) for cell in row)
    if fits and entry.get("action") == "xmp":  # of a sidecar that was there before, `to` is where it is kept
        fits = entry["from"].endswith(".xmp") and entry["to"].partition(os.sep)[0] in ("", SIDECARS)
    return fits and rows and entry.get("action") in ACTIONS


def _is_whole(path: Any) -> bool:
    """Whether it is a path from the top, as `os.path.abspath` gives it."""
    return isinstance(path, str) and can_be_named(path) and os.path.isabs(path) and os.path.normpath(path) == path


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def placed(entry: dict[str, Any]) -> str:
    """The place below `out` that an entry names; Outside where sorting cannot have made such a one."""
    kind = next(each for each in ("to", "folder", "table") if each in entry)
    parts = parts_of(entry[kind])
    least, most = {"to": (2, 3), "folder": (1, 2), "table": (1, 1)}[kind]
    if not least <= len(parts) <= most or parts[0] == JOURNAL or (kind == "table" and parts != (TABLE,)):
        raise Outside(f"the journal names {printable(entry[kind])!r}, which sorting does not make")
    return os.path.join(*parts)


def origin_of(source: str, roots: list[str]) -> tuple[str, str]:
    """The root that a file comes from, and its place below it; Outside where it comes from elsewhere."""
    for root in sorted(roots, key=len, reverse=True):
        if _below(source, root) and source != root:
            return root, os.path.relpath(source, root)
    raise Outside(f"the journal names {printable(source)}, which is outside the pile")


def key_file() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("osp")) / "journal-key"


def user_key(make: bool = False) -> bytes | None:
    """The secret; None where there is none, and none can be made."""
    path = key_file()
    with contextlib.suppress(OSError):
        return _read_key(path)
    if not make:
        return None
    with contextlib.suppress(OSError):  # an unwritable home: journals have no marks then, and undo asks
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent)  # for its owner alone
        try:
            with open(handle, "wb") as file:
                file.write(secrets.token_bytes(_KEY_SIZE))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:  # another process was faster
                pass
            except OSError:
                os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        return _read_key(path)
    return None


def mark(key: bytes, previous: str, line: str) -> str:
    """The mark of a line that follows a line with the mark `previous`: no line can be added, changed or moved."""
    text = f"{previous}\n{line}".encode("ascii", "backslashreplace")
    return hashlib.blake2b(text, key=key, digest_size=16).hexdigest()


def _read_key(path: Path) -> bytes:
    with open_plain(path) as file:
        content = file.read(_KEY_SIZE + 1)
    if len(content) != _KEY_SIZE:
        raise OSError("damaged")
    return content
