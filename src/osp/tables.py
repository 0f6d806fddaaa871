"""Tables of files for spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from osp.files import lines_of, write_text


def write_table(path: Path, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table that spreadsheets read, and in which no name is taken for a formula; `read_table` reads it."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(headings)
    table.writerows([defused(cell) for cell in row] for row in rows)
    # names that are no valid text keep a mark where the odd byte was: a table must open everywhere
    write_text(path, text.getvalue().encode("utf-8", "replace").decode())


def read_table(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a table that `write_table` wrote, as they were given to it."""
    for row in csv.DictReader(line.decode("utf-8") for line in lines_of(path)):
        yield {key: fused(cell) if isinstance(cell, str) else cell for key, cell in row.items()}


NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
"""A negative number begins like a formula, and is none."""


def defused(text: str) -> str:
    """Text that a spreadsheet will not run as a formula: those that begin like one get an apostrophe.

    So do those that begin with a tab or the end of a line, which some spreadsheets pass over, and those that would look
    the same as one with an apostrophe: `fused` takes back one, and gives what was there.

    >>> defused("=1+1.jpg"), defused("cat.jpg"), defused("'+1"), defused("'s"), defused("-0.5"), defused("-1+1")
    ("'=1+1.jpg", 'cat.jpg', "''+1", "'s", '-0.5', "'-1+1")
    """
    if NUMBER.fullmatch(text):
        return text
    bare = text.lstrip("'")
    begins = bare.startswith(("\t", "\r", "\n")) or bare.lstrip().startswith(tuple("=+-@＝＋－＠"))
    return f"'{text}" if begins else text


def fused(text: str) -> str:
    """What `defused` made this text of; a number that version 0.1 gave an apostrophe is one again.

    >>> fused("'=1+1.jpg"), fused("cat.jpg"), fused("''+1"), fused("'s"), fused("-0.5"), fused("'-0.5")
    ('=1+1.jpg', 'cat.jpg', "'+1", "'s", '-0.5', '-0.5')
    """
    made = text[:1] == "'" and (defused(text[1:]) == text or NUMBER.fullmatch(text[1:]) is not None)
    return text[1:] if made else text
