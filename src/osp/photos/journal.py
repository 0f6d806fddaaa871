"""The journal of a sort: what was done to which file, on the disk before it is done.

A line of JSON for each operation: `{"action", "from", "to", "size", "row"}` for a file, `{"folder"}` for a folder that
was made, `{"table"}` for the table. Places are relative to the folder that the journal lies in.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osp.errors import UserError

JOURNAL, TABLE = "sort-journal.jsonl", "sorted.csv"
ACTIONS = ("link", "copy", "move")


@dataclass
class Entries:
    """What a journal says."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    """Numbers of lines that are none of a journal; passed over."""
    cut_short: bool = False
    """The last line was not finished: its operation was never begun."""

    @property
    def unfinished(self) -> bool:
        """A sort was begun that did not come to its table."""
        return not self.entries or "table" not in self.entries[-1]


class Outside(Exception):
    """A journal names something outside its folder."""


class Journal:
    """Lines of JSON, each on the disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Journal:
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


def read_journal(path: Path) -> Entries:
    """The journal at this path; what cannot be read in it is passed over, and counted."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise UserError(f"There is nothing to undo: {path.parent} has no {JOURNAL}.") from None
    except OSError as error:
        raise UserError(f"The journal {path} cannot be read: {reason(error)}.") from None
    found = Entries()
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if _is_entry(entry):
            found.entries.append(entry)
        elif number == len(lines):  # no line ends after it
            found.cut_short = True
        else:
            found.damaged.append(number)
    return found


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    if "folder" in entry or "table" in entry:
        return isinstance(entry.get("folder", entry.get("table")), str)
    texts = all(isinstance(entry.get(name), str) for name in ("from", "to"))
    return texts and entry.get("action") in ACTIONS and isinstance(entry.get("size"), int)


def below(out: Path, relative: Any) -> Path:
    """A place that an entry names; a journal from elsewhere must not reach outside its folder."""
    path = Path(os.path.normpath(out / str(relative)))
    if out not in path.parents:
        raise Outside(f"the journal names {relative!r}, which is outside the folder")
    return path


def reason(error: OSError) -> str:
    """Why something on the disk failed, in words."""
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
