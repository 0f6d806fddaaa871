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
from osp.files import open_at_end, open_plain, reason
from osp.tables import defused, fused

BOOK = "labels.csv"
COLUMNS = ("path", "checksum", "class", "time")
NONE = "none"
"""In place of a class: the photo shows none of them."""
_CHECKSUM = re.compile("[0-9a-f]{32}")


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
        with open_plain(path) as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"--labels {path} cannot be read: {reason(error)}.") from None
    return _answers(path, content[: _complete(content)].decode("utf-8-sig", "replace"))


def _answers(path: Path, text: str) -> list[list[Label]]:
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        heads = next(rows, list(COLUMNS))
        if not set(COLUMNS[:3]) <= set(heads):
            raise UserError(f"{path} is no table of labels: its first line should be {','.join(COLUMNS)}.")
        where = [heads.index(name) for name in COLUMNS[:3]]
        when = heads.index(COLUMNS[3]) if COLUMNS[3] in heads else -1
        found = []
        for number, row in enumerate(rows):
            if len(row) == len(heads) and _CHECKSUM.fullmatch(row[where[1]]):
                file, content, name = (fused(row[place]) for place in where)
                found.append((row[when] if when >= 0 else str(number), Label(file, name, content)))
    except csv.Error as error:
        raise UserError(f"{path} is damaged ({error}).") from None
    return [[label for _, label in group] for _, group in groupby(found, key=lambda each: each[0])]


def _complete(content: bytes) -> int:
    """Where the last complete line ends: one that is not within quotes."""
    end = content.rfind(b"\n")
    while end >= 0 and content.count(b'"', 0, end) % 2:
        end = content.rfind(b"\n", 0, end)
    return end + 1


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
                file.seek(0)
                end = _complete(file.read())
                file.truncate(end)  # what a kill has cut short
                if not end:
                    file.write((",".join(COLUMNS) + "\r\n").encode())
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"Cannot write {path}: {reason(error)}.") from None
        self.answers = read_labels(path)

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
                lines = text.getvalue().encode("utf-8", "replace")
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
