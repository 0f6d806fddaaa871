"""Tables with their numbers as files and on the terminal: Markdown, CSV, JSON, LaTeX and a page of HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osp.bench.cells import Table
from osp.bench.numbers import TEST, bold, budgets, differences
from osp.bench.sheets import Sheet, against_sheet, legend, numbers_sheet, sheets_of
from osp.errors import UserError, printable
from osp.files import make_folder, write_text
from osp.report.html import data_url, render
from osp.tables import defused

if TYPE_CHECKING:
    import rich.console

MARKDOWN = str.maketrans({"|": "\\|", "<": "&lt;", "[": "\\["})
TEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "±": "$\\pm$"}
    | {"[": "{[}"}  # behind the end of a row it would be an argument of that end
)


def write(tables: Sequence[Table], pictures: Sequence[Path], out: Path, base: str | None = None) -> list[Path]:
    """NAME.md, NAME.csv, NAME.json and NAME.tex in a folder, where there are numbers, and NAME.html."""
    make_folder(out)
    table, grid = tables[0], tables[0].grid
    sheets = sheets_of(tables, base) if table.cells else []
    texts = {}
    if table.cells:
        texts["md"] = markdown(grid.title, table.about, sheets)
        texts["csv"] = as_csv(tables, base)
        texts["json"] = as_json(tables, base)
        texts["tex"] = latex(tables, base)
    texts["html"] = page(grid.title, table.about, sheets, pictures, table.problems)
    for ending, text in texts.items():
        write_text(out / f"{grid.name}.{ending}", text)
    return [out / f"{grid.name}.{ending}" for ending in texts]


def terminal(title: str, sheet: Sheet) -> rich.console.Group:
    """For rich's console: the title and what the numbers are, above the table that has them."""
    from rich import box
    from rich import table as rich_table
    from rich.console import Group
    from rich.text import Text

    table = rich_table.Table(box=box.SIMPLE)
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
        rows = _texts(sheet, _md, "**{}**", "{}<br>{}")
        parts.append(f"## {_md(sheet.title)}\n\n{pipes(map(_md, sheet.headings), rows)}\n")
        parts += ["".join(f"- {_md(note)}\n" for note in sheet.notes)] if sheet.notes else []
    return "\n".join(parts)


def _texts(sheet: Sheet, escaped: Callable[[str], str], bold: str, below: str) -> list[list[str]]:
    """The rows of a sheet; `bold` and `below` say how those texts are written."""
    rows = []
    for row in sheet.rows:
        lines = [bold.format(escaped(cell.line)) if cell.bold else escaped(cell.line) for cell in row]
        pairs = zip(lines, row, strict=True)
        rows.append([below.format(line, escaped(cell.below)) if cell.below else line for line, cell in pairs])
    return rows


def pipes(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table of texts that are Markdown.

    >>> print(pipes(["", "a"], [["x", "1"]]))
    |  | a |
    |---|---|
    | x | 1 |
    """
    first = list(headings)
    head, *body = ["| " + " | ".join(line) + " |" for line in (first, *rows)]
    return "\n".join([head, "|---" * len(first) + "|", *body])


def _md(text: str) -> str:
    return printable(text).translate(MARKDOWN)


# CSV and JSON


def records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Every number in the long form."""
    found = []
    for table in tables:
        best = bold(table)
        for cell in table.cells:
            mean, paper, values = cell.mean(table.measure), table.paper(cell), cell.values(table.measure)
            found.append(
                {
                    "row": cell.row,
                    "column": cell.column,
                    "measure": table.measure,
                    "mean": mean,
                    "deviation": cell.deviation(table.measure),
                    "seeds": len(values),
                    "paper": paper,
                    "difference": mean - paper if mean is not None and paper is not None else None,
                    "best": (cell.row, cell.column) in best,
                    "marks": cell.marks,
                    "state": "run" if mean is not None else cell.empty,
                    "values": {str(seed): value for seed, value in sorted(values.items())},
                }
            )
    return found


def as_csv(tables: Sequence[Table], base: str | None = None) -> str:
    """In the long form; with `base`, what `--against` says of a row stands behind its numbers."""
    rows = [{**each, "marks": "; ".join(each["marks"])} for each in records(tables)]
    if base is not None:
        pairs = {(d.row, d.column, d.measure): d for table in tables for d in differences(table, base)}
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


def as_json(tables: Sequence[Table], base: str | None = None) -> str:
    grid, choice = tables[0].grid, tables[0].choice
    pairs = [] if base is None else [vars(pair) for table in tables for pair in differences(table, base)]
    content = {
        "table": grid.name,
        "title": grid.title,
        "scale": choice.scale,
        "seeds": list(choice.seeds),
        "set": list(choice.words),
        "test": TEST,
        "cells": records(tables),
        "against": None if base is None else {"row": base, "differences": pairs},
        "budgets": [vars(budget) for budget in budgets(tables[0])],
        "runs": [run.name for run in tables[0].runs],
        "notes": legend(tables[0]),
        "problems": tables[0].problems,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


# LaTeX


def latex(tables: Sequence[Table], base: str | None = None) -> str:
    """A `tabular` with booktabs' rules, of the first number; with `base` another one of all differences to that row."""
    grid = tables[0].grid
    parts = [f"% {_tex(grid.title)}; needs booktabs", tabular(numbers_sheet(tables[0], legend(tables[0])))]
    if base is not None:
        differing = against_sheet(tables, base)
        parts += ["", f"% {_tex(differing.title)}", tabular(differing)]
    return "\n".join(parts) + "\n"


def tabular(sheet: Sheet) -> str:
    rows = _texts(sheet, _tex, "\\textbf{{{}}}", "{} [{}]")
    head, *body = [" & ".join(line) + " \\\\" for line in (map(_tex, sheet.headings), *rows)]
    lines = [f"\\begin{{tabular}}{{l{'c' * (len(sheet.headings) - 1)}}}", "\\toprule", head, "\\midrule", *body]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {_tex(note)}" for note in sheet.notes)])


def _tex(text: str) -> str:
    return printable(text).translate(TEX)


# The page


def page(
    title: str, about: str, sheets: Sequence[Sheet], pictures: Sequence[Path] = (), problems: Iterable[str] = ()
) -> str:
    """Tables and a figure in one self-contained HTML file; of its pictures those that are SVG."""
    shown = [picture(path) for path in pictures if path.suffix == ".svg"]
    figure = {"title": printable(title), "caption": printable(about), "pictures": shown}
    return render(
        "bench",
        title=printable(title),
        introduction=[printable(about)],
        tables=sheets,
        figures=[figure] if shown else [],
        notes=list(map(printable, problems)),
    )


def picture(path: Path) -> dict[str, str]:
    """Drawings are inverted on a dark screen, pictures with photographs in them are not."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the figure {path}: {error.strerror or error}.") from None
    kind = "picture" if b"<image" in content else "drawing"
    return {"source": data_url(content, "image/svg+xml"), "kind": kind}
