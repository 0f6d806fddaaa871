"""A table with its numbers: for the terminal, as Markdown, CSV, JSON and LaTeX.

Each cell has the mean and the standard deviation over seeds, their number, the paper's value and the difference. Marks
say where a setting is not the paper's. The best of a column is bold only where an exact one-sided sign-flip test over
the seeds both have finds it better than every other row (p < 0.05, which takes five seeds at least).
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osp.bench.grid import DATA_VARIANT, LOWER, MEASURES, NEITHER, Cell, Table
from osp.bench.jobs import KeyCache
from osp.bench.store import Store, StoredRun
from osp.errors import UserError, printable
from osp.files import make_folder, write_text

if TYPE_CHECKING:
    import rich.table

LEVEL = 0.05
TEST = "bold: better than every other row by an exact one-sided sign-flip test over the seeds both have, p < 0.05"
NOT_RUN = "not run"
SIGNS = {"smaller budget": "b", "smaller total": "t", "reconstruction": "r", "data variant": "v", "stale": "s"}
"""Letters that stand beside a number."""


@dataclass(frozen=True)
class Filled:
    """A cell with what the store has for it."""

    cell: Cell
    runs: tuple[StoredRun, ...] = ()
    stale: tuple[StoredRun, ...] = ()
    """Shown as such, never mixed in."""
    problems: tuple[str, ...] = ()
    """Results that could not be read, and why runs failed."""

    def values(self, measure: str) -> dict[int, float]:
        """By seed."""
        found = {int(run.plan.seed): number(run.result, measure) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, measure: str) -> float | None:
        values = list(self.values(measure).values())
        return statistics.fmean(values) if values else None

    def deviation(self, measure: str) -> float | None:
        values = list(self.values(measure).values())
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def marks(self) -> list[str]:
        found = list(self.cell.marks) if self.runs else []
        if any(run.result.get("data_variant") for run in self.runs):
            found.append(DATA_VARIANT)
        return found + (["stale"] if self.stale and not self.runs else [])

    @property
    def empty(self) -> str:
        """What stands where there is no number."""
        if self.cell.problem:
            return self.cell.problem
        return f"{NOT_RUN} ({len(self.stale)} stale)" if self.stale else NOT_RUN


@dataclass(frozen=True)
class Report:
    """A table and its numbers."""

    table: Table
    filled: tuple[Filled, ...]
    measure: str
    bold: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    def at(self, row: str, column: str) -> Filled:
        return next(each for each in self.filled if (each.cell.row, each.cell.column) == (row, column))

    @property
    def runs(self) -> list[StoredRun]:
        """All that the numbers come from, each once."""
        return list({run.name: run for each in self.filled for run in each.runs}.values())

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(problem for each in self.filled for problem in each.problems))


def fill(store: Store, table: Table, measure: str | None = None, keys: KeyCache | None = None) -> Report:
    """Look up every run of a table."""
    measure = measure or table.grid.measure
    filled = tuple(_filled(store, cell, keys) for cell in table.cells)
    return Report(table, filled, measure, frozenset(_bold(table, filled, measure)))


def _filled(store: Store, cell: Cell, keys: KeyCache | None) -> Filled:
    runs: list[StoredRun] = []
    stale: list[StoredRun] = []
    problems: list[str] = []
    for plan in cell.plans:
        content = keys.of(plan) if keys is not None else None
        try:
            run = store.find(plan, content)
        except UserError as error:
            problems.append(str(error))
            continue
        if run is not None:
            (stale if run.stale else runs).append(run)
        if (run is None or run.stale) and (failure := store.failure(store.folder_for(plan, content))):
            problems.append(f"{cell.row}, {cell.column}, seed {plan.seed} failed: {failure}")
    return Filled(cell, tuple(runs), tuple(stale), tuple(problems))


def number(result: Mapping[str, Any], measure: str) -> float | None:
    """A number of a result by its path, such as `accuracy` or `scores.softmax.auroc`."""
    found: Any = result
    for word in measure.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def meaning(measure: str) -> str:
    if measure in MEASURES:
        return MEASURES[measure]
    group, name, kind = measure.split(".", 2)
    where = f"by the score {name}" if group == "scores" else f"of ID test images against {name}"
    return f"{kind.upper()} (%) {where}"


# The test


def _bold(table: Table, filled: Sequence[Filled], measure: str) -> list[tuple[str, str]]:
    if measure in NEITHER:
        return []
    sign = -1 if measure in LOWER or measure.endswith(".fpr95") else 1
    bold = []
    for column in table.columns:
        rows = {each.cell.row: each.values(measure) for each in filled if each.cell.column == column}
        rows = {row: values for row, values in rows.items() if values}
        if len(rows) < 2:
            continue
        best = max(rows, key=lambda row: sign * statistics.fmean(rows[row].values()))
        others = [values for row, values in rows.items() if row != best]
        if all(better(rows[best], values, sign) for values in others):
            bold.append((best, column))
    return bold


def better(one: Mapping[int, float], other: Mapping[int, float], sign: int = 1) -> bool:
    """Whether the first is better than the second over the seeds both have, by the sign-flip test."""
    seeds = one.keys() & other.keys()
    return bool(seeds) and sign_flip([sign * (one[seed] - other[seed]) for seed in seeds]) < LEVEL


def sign_flip(differences: Sequence[float]) -> float:
    """Exact one-sided p: the share of all sign patterns of the differences whose sum is at least the observed one.

    Beyond 16 differences by its normal approximation, sum / sqrt(sum of squares).

    >>> sign_flip([1.0, 2.0, 1.5, 0.5, 1.0]), sign_flip([1.0, -1.0])
    (0.03125, 0.75)
    """
    total = sum(differences)
    if len(differences) > 16:
        spread = math.sqrt(sum(each * each for each in differences))
        return 1 - statistics.NormalDist().cdf(total / spread) if spread else 1.0
    sums = [sum(pattern) for pattern in product(*((each, -each) for each in differences))]
    return sum(each >= total - 1e-9 for each in sums) / len(sums)


# Words


def cell_text(each: Filled, measure: str, own: bool) -> tuple[str, str]:
    """`99.2 ± 0.1 (5)` and `paper 99.3, -0.1`."""
    mean, digits = each.mean(measure), 3 if measure == "interclass_variance" else 2
    first = each.empty
    if mean is not None:
        deviation = each.deviation(measure)
        spread = f" ± {deviation:.{digits}f}" if deviation is not None else ""
        first = f"{mean:.{digits}f}{spread} ({len(each.values(measure))})"
    signs = "".join(SIGNS[mark] for mark in each.marks)
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


@dataclass(frozen=True)
class Budget:
    """What a row cost, and what it uses validation images for."""

    row: str
    steps: float
    images: float
    seconds: float
    validation: str


def budgets(report: Report) -> list[Budget]:
    """Of every row that was run: means over its runs."""
    from osp.methods.registry import get

    found = []
    for row in report.table.rows:
        runs = [run for each in report.filled if each.cell.row == row for run in each.runs]
        if runs:
            means = [statistics.fmean(number(r.result, key) or 0 for r in runs) for key in COSTS]
            counts = sorted({run.plan.val_per_class for run in runs})
            used = f"{' or '.join(map(str, counts))} per class: {get(runs[0].plan.method).validation}"
            found.append(Budget(row, means[0], means[1], means[2], used))
    return found


COSTS = ("steps", "images_seen", "seconds")


# Forms


def terminal(report: Report) -> rich.table.Table:
    """For rich's console."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    own = report.measure == report.table.grid.measure
    title = report.table.grid.title if own else f"{report.table.grid.name}: {meaning(report.measure)}"
    shown = RichTable(title=Text(printable(title)), box=box.SIMPLE, title_justify="left")
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
    return shown


def markdown(reports: Sequence[Report]) -> str:
    """All numbers of a table, one after the other, and what they cost."""
    grid = reports[0].table.grid
    parts = [f"# {_md(grid.title)}\n"]
    if grid.about:
        parts.append(f"{_md(grid.about)}\n")
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


def as_csv(reports: Sequence[Report]) -> str:
    text = io.StringIO()
    rows = [{**each, "marks": "; ".join(each["marks"])} for each in records(reports)]
    fields = [key for key in (rows[0] if rows else {}) if key != "values"]
    writer = csv.DictWriter(text, fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _safe(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def as_json(reports: Sequence[Report]) -> str:
    grid, choice = reports[0].table.grid, reports[0].table.choice
    content = {
        "table": grid.name,
        "title": grid.title,
        "scale": choice.scale,
        "seeds": list(choice.seeds),
        "set": list(choice.settings),
        "test": TEST,
        "cells": records(reports),
        "budgets": [vars(budget) for budget in budgets(reports[0])],
        "runs": [run.name for run in reports[0].runs],
        "notes": legend(reports[0]),
        "problems": reports[0].problems,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def latex(report: Report) -> str:
    """A `tabular` with booktabs' rules."""
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
    return "\n".join(lines) + "\n"


def write(reports: Sequence[Report], out: Path) -> list[Path]:
    """NAME.md, NAME.csv, NAME.json and NAME.tex in a folder."""
    make_folder(out)
    name = reports[0].table.grid.name
    texts = {"md": markdown(reports), "csv": as_csv(reports), "json": as_json(reports), "tex": latex(reports[0])}
    paths = [out / f"{name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


def _md(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def _tex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "±": "$\\pm$"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in printable(text))


def _safe(value: Any) -> Any:
    """A text that a spreadsheet does not take for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" else value
