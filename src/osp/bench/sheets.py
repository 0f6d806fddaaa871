"""Tables as they are shown: rows of short texts, made once here and rendered in every form (`osp.bench.renderers`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from osp.bench.cells import DATA_VARIANT, RECONSTRUCTION, SMALLER_BUDGET, SMALLER_TOTAL, STALE, Cell, Table
from osp.bench.numbers import TEST, bold, budgets, differences, meaning
from osp.errors import UserError, printable
from osp.recipe import Recipe, apply_assignments, make_plan

MARKS = {
    SMALLER_BUDGET: ("b", "fewer steps or a smaller network than published"),
    SMALLER_TOTAL: ("t", "that many unlabeled images do not fit at this ratio; the largest number that does"),
    RECONSTRUCTION: ("r", "a reconstruction: no code of the authors is public"),
    DATA_VARIANT: ("v", "the images are not exactly those published"),
    STALE: ("s", "only results of other versions are there"),
}
"""The letter that stands beside a number, and what it means."""
COUNTS = ("ID classes", "OOD classes", "labeled", "validation", "pool", "OOD in it", "test", "OOD test")


@dataclass(frozen=True)
class Shown:
    """One cell of a sheet."""

    text: str
    marks: str = ""
    """Signs that the sheet's notes explain."""
    below: str = ""
    """A second, smaller line: the paper's value and the difference."""
    bold: bool = False
    missing: bool = False
    """Not run: shown faintly."""

    @property
    def line(self) -> str:
        return f"{self.text} {self.marks}" if self.marks else self.text


@dataclass(frozen=True)
class Sheet:
    """A table; the first cell of each row is its heading. Its texts are fit to print."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Shown, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """Its rows as plain text."""
        return [tuple(cell.line for cell in row) for row in self.rows]


def sheet(
    title: str, headings: Iterable[str], rows: Iterable[Iterable[Shown | str]], notes: Iterable[str] = ()
) -> Sheet:
    """A sheet of these texts, which may come from anywhere."""
    shown = ((Shown(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    made = (tuple(replace(c, text=printable(c.text), below=printable(c.below)) for c in row) for row in shown)
    return Sheet(printable(title), tuple(map(printable, headings)), tuple(made), tuple(map(printable, notes)))


# What a table has


def sheets_of(tables: Sequence[Table], base: str | None = None) -> list[Sheet]:
    """All that is written of a table: its numbers, each row against one of them, and what they cost."""
    found = [numbers_sheet(table, legend(table) if not place else ()) for place, table in enumerate(tables)]
    found += [against_sheet(tables, base)] if base is not None else []
    costs = budget_sheet(tables[0])
    return [*found, *([costs] if costs.rows else [])]


def numbers_sheet(table: Table, notes: Iterable[str] = ()) -> Sheet:
    """Every number of one measure."""
    best = bold(table)
    rows = [
        [Shown(row), *(shown(table, table.cell(row, column), (row, column) in best) for column in table.columns)]
        for row in table.rows
    ]
    return sheet(meaning(table.measure), ("", *table.columns), rows, notes)


def shown(table: Table, cell: Cell, best: bool) -> Shown:
    """`99.2 ± 0.1 (5)` and, where the paper has this number, `paper 99.3, -0.1`."""
    measure, paper = table.measure, table.paper(cell)
    mean, digits, text = cell.mean(measure), _digits(measure), cell.empty
    if mean is not None:
        deviation = cell.deviation(measure)
        spread = f" ± {deviation:.{digits}f}" if deviation is not None else ""
        text = f"{mean:.{digits}f}{spread} ({len(cell.values(measure))})"
    signs = "".join(MARKS[mark][0] for mark in cell.marks) if mean is not None or not cell.runs else ""
    below = "" if paper is None else f"paper {paper:g}" + (f", {mean - paper:+.1f}" if mean is not None else "")
    return Shown(text, signs, below, best, mean is None)


def against_sheet(tables: Sequence[Table], base: str) -> Sheet:
    """Every row against the row `base`, for every number."""
    rows = []
    for each in [pair for table in tables for pair in differences(table, base)]:
        digits = _digits(each.measure)
        where = each.row if len(tables[0].columns) == 1 else f"{each.row}, {each.column}"
        error = "" if each.error is None else f" ± {each.error:.{digits}f}"
        count = f"higher on {each.higher}" if each.better is None else f"better on {each.better}"
        p = "" if each.p is None else f"{each.p:.4f}"
        rows.append((where, each.measure, f"{each.mean:+.{digits}f}{error}", f"{count} of {each.seeds}", p))
    headings = ("", "", "difference ± its standard error", "seeds", "p (better)")
    return sheet(f"Against {base}, paired by seed", headings, rows)


def budget_sheet(table: Table) -> Sheet:
    """What every row that was run cost."""
    rows = [
        (each.row, f"{each.steps:,.0f}", f"{each.images:,.0f}", f"{each.seconds:,.1f}", each.validation)
        for each in budgets(table)
    ]
    return sheet("Budgets", ("", "steps", "images seen", "seconds", "validation images"), rows)


def legend(table: Table) -> list[str]:
    """What the numbers and signs mean, the test, and the table's notes."""
    marks = dict.fromkeys(mark for each in table.cells for mark in each.marks)
    lines = [f"{meaning(table.measure)}; mean ± standard deviation over seeds (number of seeds); {TEST}."]
    if marks:
        lines.append("; ".join(": ".join(MARKS[mark]) for mark in marks) + ".")
    variants = dict.fromkeys(str(run.result["data_variant"]) for run in table.runs if run.result.get("data_variant"))
    lines += [f"data variant: {variant}" for variant in variants]
    if table.choice.words:
        lines.append(f"set for all: {', '.join(table.choice.words)}")
    return lines + table.notes


def _digits(measure: str) -> int:
    return 3 if measure == "interclass_variance" else 2


# The settings of the paper's Table 3


def settings_sheet(table: Table) -> Sheet:
    """Each data set at each ratio, counted in the splits that runs are given, beside the paper's numbers."""
    grid, choice, rows = table.grid, table.choice, []
    for data in choice.datasets or grid.datasets:
        paper = " / ".join(f"{number:,.0f}" for number in grid.paper.rows.get(data, ()) if number is not None)
        for ratio in choice.ratios or ((None,) if choice.counts else grid.ratios):
            fields = {**grid.fields, "ood_ratio": ratio, **choice.fields, "data": data, "seed": choice.seeds[0]}
            numbers = counted(Recipe(**apply_assignments(fields, list(choice.settings))))
            texts = [f"{number:,}" for number in numbers] or ["no data", *[""] * (len(COUNTS) - 1)]
            rows.append((data if ratio is None else f"{data} {ratio:g}", *texts, paper or "-"))
    return sheet("Classes and images", ("", *COUNTS, "paper"), rows, table.notes)


def counted(recipe: Recipe) -> tuple[int, ...]:
    """The numbers of images under `COUNTS`; nothing where the images are not here."""
    from osp.engine.data import load_sets, open_data

    try:
        plan = make_plan(recipe).changed(test_ood=())  # which count nowhere
        load_sets(plan, fetch=False)
        opened = open_data(plan)
    except UserError:
        return ()
    split, ood = opened.split, opened.split.unlabeled_is_ood
    classes, every = len(split.id_classes), len(opened.source.class_names)
    parts = (split.labeled, split.val, split.unlabeled, ood[ood], split.test, split.test_ood)
    return (classes, every - classes, *map(len, parts))
