"""From the numbers of a table to its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from osp.bench.grid import Grid
from osp.bench.numbers import Report, budgets, meaning
from osp.bench.output import AGAINST, SIGNS, against, cell_text, legend
from osp.bench.page import Cell, Figure, Page, Table, write_page
from osp.files import make_folder


def write_bench_page(
    reports: Sequence[Report], grid: Grid, pictures: Sequence[Path], out: Path, base: str | None = None
) -> Path:
    """NAME.html in the folder."""
    make_folder(out)
    about = reports[0].table.about if reports else grid.about
    tables = [_numbers(report) for report in reports]
    if reports and base is not None:
        tables.append(Table(f"Against {base}, paired by seed", AGAINST, against(reports, base)))
    if reports and (costs := budgets(reports[0])):
        rows = [(c.row, f"{c.steps:,.0f}", f"{c.images:,.0f}", f"{c.seconds:,.1f}", c.validation) for c in costs]
        tables.append(Table("Budgets", ("", "steps", "images seen", "seconds", "validation images"), rows))
    figures = [Figure(grid.title, pictures, about)] if pictures else []
    page = Page(grid.title, [about], tables, figures, reports[0].problems if reports else ())
    return write_page(page, out / f"{grid.name}.html")


def _numbers(report: Report) -> Table:
    own = report.measure == report.table.grid.measure
    rows: list[list[Cell | str]] = []
    for row in report.table.rows:
        cells: list[Cell | str] = [row]
        for column in report.table.columns:
            each = report.at(row, column)
            signs = "".join(SIGNS[mark] for mark in each.marks)
            text, below = cell_text(each, report.measure, own)
            missing = each.mean(report.measure) is None
            text = text.removesuffix(f" {signs}") if signs else text
            cells.append(Cell(text, (row, column) in report.bold, signs, below, missing))
        rows.append(cells)
    return Table(meaning(report.measure), ("", *report.table.columns), rows, legend(report))
