"""The page of a bench: its tables and figures in one self-contained HTML file. Whatever is put into it is text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osp.errors import UserError, printable
from osp.files import write_text
from osp.report.template import data_url, render

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    bold: bool = False
    marks: str = ""
    """Signs that refer to the table's notes."""
    below: str = ""
    """A second, smaller line: the paper's value and the difference."""
    missing: bool = False
    """Not run: shown faintly."""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row is its heading."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A figure: its files, of which the page takes the SVG where there is one."""

    title: str
    files: Sequence[Path]
    caption: str = ""


@dataclass(frozen=True)
class Page:
    """All that a page shows."""

    title: str
    introduction: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()


def write_page(page: Page, path: Path) -> Path:
    """Write the page; returns its path."""
    text = render(
        "bench",
        title=printable(page.title),
        introduction=[printable(each) for each in page.introduction],
        tables=[_table(table) for table in page.tables],
        figures=[_figure(figure) for figure in page.figures],
        notes=[printable(each) for each in page.notes],
    )
    write_text(path, text)
    return path


def _table(table: Table) -> dict[str, object]:
    return {
        "title": printable(table.title),
        "headings": [printable(each) for each in table.headings],
        "rows": [[_cell(cell) for cell in row] for row in table.rows],
        "notes": [printable(each) for each in table.notes],
    }


def _cell(cell: Cell | str) -> dict[str, object]:
    cell = Cell(cell) if isinstance(cell, str) else cell
    return {
        "text": printable(cell.text),
        "bold": cell.bold,
        "marks": printable(cell.marks),
        "below": printable(cell.below),
        "missing": cell.missing,
    }


def _figure(figure: Figure) -> dict[str, object]:
    return {
        "title": printable(figure.title),
        "caption": printable(figure.caption),
        "pictures": [{"source": _source(path), "kind": _kind(path)} for path in preferred(figure.files)],
    }


def preferred(files: Sequence[Path]) -> list[Path]:
    """Of files that differ in their ending only, the SVG; in the order they came.

    >>> preferred([Path("a.png"), Path("a.svg"), Path("b.png")])
    [PosixPath('a.svg'), PosixPath('b.png')]
    """
    chosen: dict[Path, Path] = {}
    for path in files:
        if path.suffix not in KINDS:
            raise UserError(f"{path} is no picture that a page can show: PNG or SVG.")
        stem = path.with_suffix("")
        if stem not in chosen or path.suffix == ".svg":
            chosen[stem] = path
    return list(chosen.values())


def _source(path: Path) -> str:
    try:
        return data_url(path.read_bytes(), KINDS[path.suffix])
    except OSError as error:
        raise UserError(f"Cannot read the figure {path}: {error.strerror or error}.") from None


def _kind(path: Path) -> str:
    """Drawings are inverted on a dark screen, pictures with photographs in them are not."""
    return "picture" if b"<image" in path.read_bytes() or path.suffix == ".png" else "drawing"
