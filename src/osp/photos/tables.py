"""Tables of files for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from osp.files import write_text


def write_table(path: Path, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table that spreadsheets read, and in which no name is taken for a formula."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(headings)
    table.writerows([defused(cell) for cell in row] for row in rows)
    # names that are no valid text keep a mark where the odd byte was: a table must open everywhere
    write_text(path, text.getvalue().encode("utf-8", "replace").decode())


def defused(text: str) -> str:
    """Text that a spreadsheet will not run as a formula: those that begin like one get an apostrophe.

    So do those that begin with a tab or the end of a line, which some spreadsheets pass over.

    >>> defused("=1+1.jpg"), defused("cat.jpg")
    ("'=1+1.jpg", 'cat.jpg')
    """
    begins = text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(tuple("=+-@＝＋－＠"))
    return f"'{text}" if begins else text
