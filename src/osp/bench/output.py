"""A table with its numbers (`osp.bench.numbers`): for the terminal, as Markdown, CSV, JSON and LaTeX.

Each cell has the mean and the standard deviation over seeds, their number, the paper's value and the difference. Marks
say where a setting is not the paper's.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osp.bench.numbers import TEST, Filled, Report, budgets, differences, meaning
from osp.errors import printable
from osp.files import make_folder, write_text
from osp.tables import defused

if TYPE_CHECKING:
    import rich.console

SIGNS = {"smaller budget": "b", "smaller total": "t", "reconstruction": "r", "data variant": "v", "stale": "s"}
"""Letters that stand beside a number."""


# Words


def cell_text(each: Filled, measure: str, own: bool) -> tuple[str, str]:
    """`99.2 ± 0.1 (5)` and `paper 99.3, -0.1`."""
    mean, digits = each.mean(measure), 3 if measure == "interclass_variance" else 2
    first = each.empty
    if mean is not None:
        deviation = each.deviation(measure)
        spread = f" ± {deviation:.{digits}f}" if deviation is not None else ""
        first = f"{mean:.{digits}f}{spread} ({len(each.values(measure))})"
    signs = "".join(SIGNS[mark] for mark in each.marks) if mean is not None or not each.runs else ""
    paper = each.cell.paper if own else None
    second = "" if paper is None else f"paper {paper:g}" + (f", {mean - paper:+.1f}" if mean is not None else "")
    return first + (f" {signs}" if signs else ""), second


def legend(report: Report) -> list[str]:
    """What the signs mean, the test, and the table's notes."""
    marks = dict.fromkeys(mark for each in report.filled for mark in each.marks)
    lines = [f"{meaning(report.measure)}; mean ± standard deviation over seeds (number of seeds); {TEST}."]
    if marks:
        lines.append("; ".join(f"{SIGNS[mark]}: {WORDS[mark]}" for mark in marks) + ".")
    variants = dict.fromkeys(str(run.result["data_variant"]) for run in report.runs if run.result.get("data_variant"))
    lines += [f"data variant: {variant}" for variant in variants]
    if choices := [*report.table.choice.settings]:
        lines.append(f"set for all: {', '.join(choices)}")
    return lines + list(report.table.grid.notes)


WORDS = {
    "smaller budget": "fewer steps or a smaller network than published",
    "smaller total": "the published number of unlabelled images does not fit at this ratio; the largest that does",
    "reconstruction": "a reconstruction: no code of the authors is public",
    "data variant": "the images are not exactly those published",
    "stale": "only results of other versions are there",
}


# Forms


def terminal(report: Report) -> rich.console.Group:
    """For rich's console: the title and what the numbers are, above the table that has them."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    own = report.measure == report.table.grid.measure
    title = Text(f"{printable(report.table.grid.title)}\n", "italic").append(meaning(report.measure), "not italic bold")
    shown = RichTable(box=box.SIMPLE)
    shown.add_column("", no_wrap=True)
    for column in report.table.columns:
        shown.add_column(Text(printable(column)))
    for row in report.table.rows:
        texts = []
        for column in report.table.columns:
            first, second = cell_text(report.at(row, column), report.measure, own)
            text = Text(first, "bold" if (row, column) in report.bold else "")
            texts.append(text.append(f"\n{second}", "dim") if second else text)
        shown.add_row(Text(printable(row)), *texts)
    return Group(title, shown)


AGAINST = ("", "", "difference ± its standard error", "seeds", "p (better)")
"""Headings of `against`."""


def against(reports: Sequence[Report], base: str) -> list[tuple[str, str, str, str, str]]:
    """Every row against the row `base`, for every number: row and column, what, difference, seeds, p."""
    found = []
    for each in [pair for report in reports for pair in differences(report, base)]:
        digits = 3 if each.measure == "interclass_variance" else 2
        error = "" if each.error is None else f" ± {each.error:.{digits}f}"
        where = each.row if len(reports[0].table.columns) == 1 else f"{each.row}, {each.column}"
        p = "" if each.p is None else f"{each.p:.4f}"
        difference = f"{each.mean:+.{digits}f}{error}"
        count = f"higher on {each.higher}" if each.better is None else f"better on {each.better}"
        found.append((where, each.measure, difference, f"{count} of {each.seeds}", p))
    return found


def markdown(reports: Sequence[Report], base: str | None = None) -> str:
    """All numbers of a table, one after the other, perhaps each row against one of them, and what they cost."""
    grid, about = reports[0].table.grid, reports[0].table.about
    parts = [f"# {_md(grid.title)}\n"]
    if about:
        parts.append(f"{_md(about)}\n")
    for report in reports:
        own, columns = report.measure == grid.measure, report.table.columns
        parts.append(f"## {_md(meaning(report.measure))}\n")
        parts.append("| | " + " | ".join(map(_md, columns)) + " |\n|---" + "|---" * len(columns) + "|")
        for row in report.table.rows:
            cells = []
            for column in columns:
                first, second = cell_text(report.at(row, column), report.measure, own)
                text = f"**{first}**" if (row, column) in report.bold else first
                cells.append(text + (f"<br>{second}" if second else ""))
            parts.append(f"| {_md(row)} | " + " | ".join(cells) + " |")
        parts.append("")
    if base is not None:
        parts.append(f"## Against {_md(base)}\n\n| " + " | ".join(AGAINST) + " |\n|---|---|---|---|---|")
        parts += ["| " + " | ".join(map(_md, line)) + " |" for line in against(reports, base)]
        parts.append("")
    parts += [f"- {_md(line)}" for line in legend(reports[0])]
    if costs := budgets(reports[0]):
        parts.append("\n## Budgets\n\n| | steps | images seen | seconds | validation images |\n|---|---|---|---|---|")
        parts += [
            f"| {_md(c.row)} | {c.steps:,.0f} | {c.images:,.0f} | {c.seconds:,.1f} | {_md(c.validation)} |"
            for c in costs
        ]
    return "\n".join(parts) + "\n"


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
    text = io.StringIO()
    rows = [{**each, "marks": "; ".join(each["marks"])} for each in records(reports)]
    if base is not None:
        pairs = {(d.row, d.column, d.measure): d for report in reports for d in differences(report, base)}
        for row in rows:
            pair = pairs.get((row["row"], row["column"], row["measure"]))
            row["against"] = base if pair is not None else ""
            for key in ("mean", "error", "better", "seeds", "p"):
                row[f"against_{key}"] = None if pair is None else getattr(pair, key)
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


def latex(reports: Sequence[Report], base: str | None = None) -> str:
    """A `tabular` with booktabs' rules, of the first number; with `base` another one of all differences to that row."""
    report = reports[0]
    own, columns = report.measure == report.table.grid.measure, report.table.columns
    lines = [
        f"% {_tex(report.table.grid.title)}; needs booktabs",
        f"\\begin{{tabular}}{{l{'c' * len(columns)}}}",
        "\\toprule",
        " & ".join(["", *map(_tex, columns)]) + " \\\\",
        "\\midrule",
    ]
    for row in report.table.rows:
        cells = []
        for column in columns:
            first, second = cell_text(report.at(row, column), report.measure, own)
            text = f"\\textbf{{{_tex(first)}}}" if (row, column) in report.bold else _tex(first)
            cells.append(text + (f" [{_tex(second)}]" if second else ""))
        lines.append(" & ".join([_tex(row), *cells]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {_tex(line)}" for line in legend(report))]
    if base is not None:
        headings = " & ".join(map(_tex, AGAINST)) + " \\\\"
        lines += ["", f"% Against {_tex(base)}, paired by seed", "\\begin{tabular}{llccc}", "\\toprule", headings]
        lines += ["\\midrule", *(" & ".join(map(_tex, each)) + " \\\\" for each in against(reports, base))]
        lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines) + "\n"


def write(reports: Sequence[Report], out: Path, base: str | None = None) -> list[Path]:
    """NAME.md, NAME.csv, NAME.json and NAME.tex in a folder."""
    make_folder(out)
    name = reports[0].table.grid.name
    forms = {"md": markdown, "csv": as_csv, "json": as_json, "tex": latex}
    texts = {ending: form(reports, base) for ending, form in forms.items()}
    paths = [out / f"{name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


def _md(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _tex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "±": "$\\pm$"}
    special |= {"[": "{[}"}  # behind the end of a row it would be an argument of that end
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in printable(text))
