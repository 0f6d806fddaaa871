"""labels.csv: what a person has said about single photos, a line for each, in the order in which it was said.

    path, checksum, class, time       the checksum is that of the file's bytes (`osp.photos.features`)

The class `none` means: none of my classes. The last line of a photo counts; an empty class takes its label back. Lines
of one answer have the same time. A line cut short by a kill was never confirmed, and is passed over.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from osp.errors import UserError
from osp.files import open_at_end, read_plain, reason
from osp.tables import defused, fused

BOOK = "labels.csv"
COLUMNS = ("path", "checksum", "class", "time")
NONE = "none"
"""In place of a class: the photo shows none of them."""
HEAD = (",".join(COLUMNS) + "\r\n").encode()
LONGEST_LINE = 1 << 14
_CHECKSUM, _CELL = re.compile("[0-9a-f]{32}"), re.compile(rb"(?:^|,)[0-9a-f]{32},", re.MULTILINE)
_TIME = re.compile(rb",\d{4}-\d\d-\d\dT[0-9:.]+\+00:00(?=\r?\Z)")


class Label(NamedTuple):
    """A photograph and what was said about it."""

    file: str
    name: str
    """Of its class; `NONE`; or empty: it has none any more."""
    content: str


def read_labels(path: Path) -> list[list[Label]]:
    """All answers of a file, the labels of one answer together, in order; none where the file is empty.

    Lines that are damaged are passed over.
    """
    try:
        content = read_plain(path)
    except OSError as error:
        raise UserError(f"--labels {path} cannot be read: {reason(error)}.") from None
    return _answers(path, content[: _complete(path, content)])


def _answers(path: Path, content: bytes) -> list[list[Label]]:
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig", "surrogateescape"), newline=""))
    try:
        heads = next(rows, list(COLUMNS))
        if not set(COLUMNS[:3]) <= set(heads):
            raise UserError(f"{path} is no table of labels: its first line should be {','.join(COLUMNS)}.")
        where = [heads.index(name) for name in COLUMNS[:3]]
        when = heads.index(COLUMNS[3]) if COLUMNS[3] in heads else -1
        found = []
        for number, row in enumerate(rows):
            if len(row) == len(heads) and _CHECKSUM.fullmatch(row[where[1]]):
                file, key, name = (fused(row[place]) for place in where)
                found.append((row[when] if when >= 0 else str(number), Label(file, name, key)))
    except csv.Error as error:
        raise UserError(f"{path} is damaged ({error}).") from None
    return [[label for _, label in group] for _, group in groupby(found, key=lambda each: each[0])]


def _complete(path: Path, content: bytes) -> int:
    """Where the last complete line ends: one that is not within quotes. What follows, a kill has cut short, unless it
    ends with a whole time: some editors leave out the end of the last line.

    A quotation mark that opens by damage would make that of all lines behind it: such a file is refused.
    """
    end = content.rfind(b"\n")
    within = content.count(b'"', 0, max(end, 0)) % 2
    while within and len(content) - LONGEST_LINE < end >= 0:
        before = content.rfind(b"\n", 0, end)
        within = (within + content.count(b'"', max(before, 0), end)) % 2
        end = before
    if within or len(_CELL.findall(content, end + 1)) > 1:
        raise UserError(
            f"{path} is damaged: a quotation mark in it is never closed. Nothing was changed; mend it first."
        )
    last = _TIME.search(content, end + 1)
    return last.end() if last and content.count(b'"', end + 1) % 2 == 0 else end + 1


def current(answers: Iterable[Sequence[Label]]) -> dict[str, Label]:
    """What counts today, by content."""
    found: dict[str, Label] = {}
    for label in (each for answer in answers for each in answer):
        found.pop(label.content, None)
        if label.name:
            found[label.content] = label
    return found


class Book:
    """A labels.csv to which answers are added, each on the disk before `add` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = datetime.min.replace(tzinfo=UTC)
        try:
            with open_at_end(path, "a+b") as file:
                content = read_plain(path)
                end = _complete(path, content)
                self.answers = _answers(path, content[:end] if HEAD.startswith(content) else content[:end] or content)
                file.truncate(end)  # what a kill has cut short; a table of somebody else's was refused before
                if not content[:end].endswith(b"\n"):
                    file.write(b"\r\n" if end else HEAD)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"Cannot write {path}: {reason(error)}.") from None

    def add(self, answer: Sequence[Label]) -> None:
        """One answer about one or several photos; UserError, and nothing added, where it cannot be written."""
        now = max(datetime.now(UTC), self._last + timedelta(microseconds=1))
        text = io.StringIO(newline="")
        for label in answer:
            cells = (label.file, label.content, label.name, now.isoformat())
            csv.writer(text).writerow([defused(cell) for cell in cells])
        try:
            with open_at_end(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                lines = text.getvalue().encode("utf-8", "surrogateescape")
                try:
                    if os.write(file.fileno(), lines) < len(lines):
                        raise OSError(errno.ENOSPC, "no room")
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
        except OSError as error:
            raise UserError(f"The answer could not be written to {self.path}: {reason(error)}.") from None
        self._last = now
        self.answers.append(list(answer))
