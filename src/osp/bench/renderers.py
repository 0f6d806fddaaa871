"""Tables with their numbers as files and on the terminal: Markdown, CSV, JSON, LaTeX and a page of HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osp.bench.grid import Grid
from osp.bench.numbers import TEST, Report, budgets, differences
from osp.bench.sheets import Sheet, against_sheet, legend, numbers_sheet, sheets_of
from osp.errors import UserError, printable
from osp.files import make_folder, write_text
from osp.report.html import data_url, render
from osp.tables import defused

if TYPE_CHECKING:
    import rich.console

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


def write(
    grid: Grid, about: str, reports: Sequence[Report], pictures: Sequence[Path], out: Path, base: str | None = None
) -> list[Path]:
    """NAME.md, NAME.csv, NAME.json and NAME.tex in a folder, where there are numbers, and NAME.html."""
    make_folder(out)
    sheets, texts = sheets_of(reports, base) if reports else [], {}
    if reports:
        texts = {
            "md": markdown(grid.title, about, sheets),
            "csv": as_csv(reports, base),
            "json": as_json(reports, base),
            "tex": latex(reports, base),
        }
    problems = reports[0].problems if reports else []
    texts["html"] = page(grid.title, about, sheets, pictures, problems)
    for ending, text in texts.items():
        write_text(out / f"{grid.name}.{ending}", text)
    return [out / f"{grid.name}.{ending}" for ending in texts]


def terminal(title: str, sheet: Sheet) -> rich.console.Group:
    """For rich's console: the title and what the numbers are, above the table that has them."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    for heading in sheet.headings[1:]:
        table.add_column(Text(heading))
    for first, *cells in sheet.rows:
        texts = [Text(cell.line, "bold" if cell.bold else "") for cell in cells]
        for text, cell in zip(texts, cells, strict=True):
            text.append(f"\n{cell.below}" if cell.below else "", "dim")
        table.add_row(Text(first.text), *texts)
    return Group(Text(f"{printable(title)}\n", "italic").append(sheet.title, "not italic bold"), table)


# Markdown


def markdown(title: str, about: str, sheets: Iterable[Sheet]) -> str:
    """Every sheet, one after the other, each with its notes."""
    parts = [f"# {_md(title)}\n", *([f"{_md(about)}\n"] if about else [])]
    for sheet in sheets:
        rows = []
        for row in sheet.rows:
            texts = [f"**{_md(cell.line)}**" if cell.bold else _md(cell.line) for cell in row]
            rows.append([f"{text}<br>{c.below}" if c.below else text for text, c in zip(texts, row, strict=True)])
        parts.append(f"## {_md(sheet.title)}\n\n{pipes(map(_md, sheet.headings), rows)}\n")
        parts += ["".join(f"- {_md(note)}\n" for note in sheet.notes)] if sheet.notes else []
    return "\n".join(parts)


def pipes(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table of texts that are Markdown.

    >>> print(pipes(["", "a"], [["x", "1"]]))
    |  | a |
    |---|---|
    | x | 1 |
    """
    first = list(headings)
    lines = [first, *map(list, rows)]
    shown = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([shown[0], "|---" * len(first) + "|", *shown[1:]])


def _md(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


# CSV and JSON


def records(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Every number in the long form."""
    found = []
    for report in reports:
        own = report.measure == report.table.grid.measure
        for each in report.filled:
            mean, paper = each.mean(report.measure), each.cell.paper if own else None
            found.append(
                {
                    "row": each.cell.row,
                    "column": each.cell.column,
                    "measure": report.measure,
                    "mean": mean,
                    "deviation": each.deviation(report.measure),
                    "seeds": len(each.values(report.measure)),
                    "paper": paper,
                    "difference": mean - paper if mean is not None and paper is not None else None,
                    "best": (each.cell.row, each.cell.column) in report.bold,
                    "marks": each.marks,
                    "state": "run" if mean is not None else each.empty,
                    "values": {str(seed): value for seed, value in sorted(each.values(report.measure).items())},
                }
            )
    return found


def as_csv(reports: Sequence[Report], base: str | None = None) -> str:
    """In the long form; with `base`, what `--against` says of a row stands behind its numbers."""
    rows = [{**each, "marks": "; ".join(each["marks"])} for each in records(reports)]
    if base is not None:
        pairs = {(d.row, d.column, d.measure): d for report in reports for d in differences(report, base)}
        for row in rows:
            pair = pairs.get((row["row"], row["column"], row["measure"]))
            row["against"] = base if pair is not None else ""
            for key in ("mean", "error", "better", "seeds", "p"):
                row[f"against_{key}"] = None if pair is None else getattr(pair, key)
    text = io.StringIO()
    fields = [key for key in (rows[0] if rows else {}) if key != "values"]
    writer = csv.DictWriter(text, fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: defused(printable(value)) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    )
    return text.getvalue()


def as_json(reports: Sequence[Report], base: str | None = None) -> str:
    grid, choice = reports[0].table.grid, reports[0].table.choice
    pairs = [] if base is None else [vars(pair) for report in reports for pair in differences(report, base)]
    content = {
        "table": grid.name,
        "title": grid.title,
        "scale": choice.scale,
        "seeds": list(choice.seeds),
        "set": list(choice.settings),
        "test": TEST,
        "cells": records(reports),
        "against": None if base is None else {"row": base, "differences": pairs},
        "budgets": [vars(budget) for budget in budgets(reports[0])],
        "runs": [run.name for run in reports[0].runs],
        "notes": legend(reports[0]),
        "problems": reports[0].problems,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


# LaTeX


def latex(reports: Sequence[Report], base: str | None = None) -> str:
    """A `tabular` with booktabs' rules, of the first number; with `base` another one of all differences to that row."""
    grid = reports[0].table.grid
    parts = [f"% {_tex(grid.title)}; needs booktabs", tabular(numbers_sheet(reports[0], legend(reports[0])))]
    if base is not None:
        differing = against_sheet(reports, base)
        parts += ["", f"% {_tex(differing.title)}", tabular(differing)]
    return "\n".join(parts) + "\n"


def tabular(sheet: Sheet) -> str:
    rows = []
    for row in sheet.rows:
        texts = [f"\\textbf{{{_tex(cell.line)}}}" if cell.bold else _tex(cell.line) for cell in row]
        rows.append([f"{text} [{_tex(c.below)}]" if c.below else text for text, c in zip(texts, row, strict=True)])
    head, *body = [" & ".join(line) + " \\\\" for line in (map(_tex, sheet.headings), *rows)]
    lines = [f"\\begin{{tabular}}{{l{'c' * (len(sheet.headings) - 1)}}}", "\\toprule", head, "\\midrule", *body]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {_tex(note)}" for note in sheet.notes)])


def _tex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "±": "$\\pm$"}
    special |= {"[": "{[}"}  # behind the end of a row it would be an argument of that end
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in printable(text))


# The page


def page(
    title: str, about: str, sheets: Sequence[Sheet], pictures: Sequence[Path] = (), problems: Iterable[str] = ()
) -> str:
    """Tables and a figure in one self-contained HTML file."""
    shown = [{"source": _source(path), "kind": _kind(path)} for path in preferred(pictures)]
    figure = {"title": printable(title), "caption": printable(about), "pictures": shown}
    return render(
        "bench",
        title=printable(title),
        introduction=[printable(about)],
        tables=sheets,
        figures=[figure] if pictures else [],
        notes=list(map(printable, problems)),
    )


def preferred(files: Sequence[Path]) -> list[Path]:
    """Of files that differ in their ending only, the SVG; in the order they came.

    >>> preferred([Path("a.png"), Path("a.svg"), Path("b.png")])
    [PosixPath('a.svg'), PosixPath('b.png')]
    """
    chosen: dict[Path, Path] = {}
    for path in files:
        if path.suffix not in PICTURES:
            raise UserError(f"{path} is no picture that a page can show: PNG or SVG.")
        if path.with_suffix("") not in chosen or path.suffix == ".svg":
            chosen[path.with_suffix("")] = path
    return list(chosen.values())


def _source(path: Path) -> str:
    try:
        return data_url(path.read_bytes(), PICTURES[path.suffix])
    except OSError as error:
        raise UserError(f"Cannot read the figure {path}: {error.strerror or error}.") from None


def _kind(path: Path) -> str:
    """Drawings are inverted on a dark screen, pictures with photographs in them are not."""
    return "picture" if b"<image" in path.read_bytes() or path.suffix == ".png" else "drawing"
