"""The cells of a table: what a grid file and the command ask for, as one plan for each cell and seed, and its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from osp.bench.grid import Entry, Grid
from osp.errors import UserError, suggest
from osp.plugins import is_file, same_path
from osp.recipe import Plan, Recipe, apply_assignments, make_plan
from osp.recipe.code import files_in
from osp.recipe.plan import SPLIT_FIELDS
from osp.runs.run import Run


@dataclass(frozen=True)
class Choice:
    """The part of a grid that was asked for, and how it is to be run."""

    scale: str = "cpu"
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    ratios: tuple[float, ...] = ()
    settings: tuple[str, ...] = ()
    """`key=value`, as behind --set."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of every recipe: data_dir, id_count, test_ood and the like."""

    @property
    def named(self) -> tuple[str, ...]:
        """What the user has named here: files of code among it may stand in a grid file, too."""
        return (*self.methods, *self.datasets, *files_in(self.given).values())

    @property
    def given(self) -> dict[str, Any]:
        """Fields and settings, as those of a recipe."""
        return apply_assignments(self.fields, list(self.settings))

    @property
    def counts(self) -> bool:
        """Whether numbers of images take the place of shares of OOD images."""
        return not self.ratios and "ood_ratio" not in self.given and bool({"id_count", "ood_count"} & set(self.given))

    @property
    def words(self) -> tuple[str, ...]:
        """What is set for all runs, as behind --set; folders are nobody's business."""
        return (*(f"{key}={value}" for key, value in self.fields.items() if key != "data_dir"), *self.settings)


SMALLER_TOTAL = "smaller total"
SMALLER_BUDGET = "smaller budget"
RECONSTRUCTION = "reconstruction"
DATA_VARIANT = "data variant"
STALE = "stale"
NO_NUMBER = "-"
"""Run, but not a number that such a method has: the purity of a partition that it does not make."""

NO_SETTING = Entry(name="")


@dataclass(frozen=True)
class Cell:
    """One number of the table: a plan for each seed, and what a store has of them (`osp.bench.numbers.fill`)."""

    row: str
    column: str
    plans: tuple[Plan, ...] = ()
    paper: float | None = None
    unlike: tuple[str, ...] = ()
    """In which ways its runs are not the paper's, as far as their plan tells."""
    problem: str = ""
    """Why it cannot be run."""
    runs: tuple[Run, ...] = ()
    stale: tuple[Run, ...] = ()
    """Shown as such, never mixed in."""
    failures: tuple[str, ...] = ()
    """Results that could not be read, and why runs failed."""

    def values(self, measure: str) -> dict[int, float]:
        """By seed."""
        found = {run.plan.seed: run.number(measure) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, measure: str) -> float | None:
        values = self.values(measure).values()
        return statistics.fmean(values) if values else None

    def deviation(self, measure: str) -> float | None:
        values = self.values(measure).values()
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def marks(self) -> list[str]:
        found = list(self.unlike) if self.runs else []
        if any(run.result.get("data_variant") for run in self.runs):
            found.append(DATA_VARIANT)
        return found + ([STALE] if self.stale and not self.runs else [])

    @property
    def empty(self) -> str:
        """What stands where there is no number."""
        if self.problem or self.runs:
            return self.problem or NO_NUMBER
        return f"not run ({len(self.stale)} stale)" if self.stale else "not run"


@dataclass(frozen=True)
class Table:
    """A grid with its cells, row by row, and the number of theirs that is shown."""

    grid: Grid
    choice: Choice
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    measure: str

    def cell(self, row: str, column: str) -> Cell:
        return next(cell for cell in self.cells if (cell.row, cell.column) == (row, column))

    def paper(self, cell: Cell) -> float | None:
        """The paper's number, where that is the one shown."""
        return cell.paper if self.measure == self.grid.measure else None

    @property
    def about(self) -> str:
        """What it shows, and on which data sets where those of the grid file are not meant."""
        other = [name for name in self.choice.datasets if set(self.choice.datasets) - set(self.grid.datasets)]
        return f"{self.grid.about} Here: {', '.join(other)}.".lstrip() if other else self.grid.about

    @property
    def notes(self) -> list[str]:
        """The notes of the grid file that apply where this number is shown."""
        names = {*self.rows, *(self.choice.datasets or self.grid.datasets), *(plan.data for plan in self.plans)}
        beside = any(self.paper(cell) is not None for cell in self.cells)
        return [n.text for n in self.grid.notes if names.issuperset(n.where) and (beside or not n.published)]

    @property
    def plans(self) -> list[Plan]:
        return [plan for cell in self.cells for plan in cell.plans]

    @property
    def runs(self) -> list[Run]:
        """All that the numbers come from, each once."""
        return list({run.name: run for cell in self.cells for run in cell.runs}.values())

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(problem for cell in self.cells for problem in cell.failures))


def expand(grid: Grid, choice: Choice) -> Table:
    """Every cell with its plans."""
    check_names(grid, choice)
    rows, columns = chosen_rows(grid, choice), chosen_columns(grid, choice)
    pairs = product(rows, columns) if grid.kind != "settings" else ()
    cells = tuple(make_cell(grid, choice, row, column) for row, column in pairs)
    row_names, column_names = (tuple(entry.name for entry in entries) for entries in (rows, columns))
    return Table(grid, choice, row_names, column_names, cells, grid.measure)


def check_names(grid: Grid, choice: Choice) -> None:
    """Unknown methods and data sets are refused before anything is run; near misses are named."""
    from osp.engine.data import data_sets, known_set
    from osp.methods.registry import available

    for name in choice.methods:
        if not is_file(name) and name not in (*available(), *(entry.name for entry in grid.entries)):
            raise UserError(f"--methods: unknown method {name!r}.{suggest(name, available())}")
    for where, names in (("--datasets", choice.datasets), (grid.name, grid.datasets)):
        for name in names:
            if not known_set(name):
                raise UserError(f"{where}: unknown data set {name!r}.{suggest(name, data_sets())}")
    for ratio in choice.ratios:
        if not 0 <= ratio <= 1:
            raise UserError(f"--ratios: invalid value {ratio:g}: shares of OOD images lie between 0 and 1.")
    for entry in grid.entries:
        method = str(entry.fields.get("method", entry.name))
        if not entry.published and method not in available() and not is_file(method):
            hint = suggest(method, available())
            raise UserError(f"{grid.name}: unknown method {method!r} in the row {entry.name!r}.{hint}")


def chosen_rows(grid: Grid, choice: Choice) -> list[Entry]:
    if not choice.methods or not grid.entries:
        return list(grid.entries)
    if not grid.rows:
        return [Entry.model_validate(name) for name in choice.methods]
    asked = {same_path(name) for name in choice.methods}
    kept = [e for e in grid.rows if {same_path(str(e.fields.get("method"))), e.name} & asked]
    listed = {str(entry.fields.get("method")) for entry in grid.rows}
    plain = all(entry.fields.keys() <= {"method"} for entry in grid.rows)
    if plain:  # rows that are nothing but methods: others may join them
        kept += [Entry.model_validate(name) for name in choice.methods if name not in listed]
    if not kept:
        methods = sorted({str(entry.fields["method"]) for entry in grid.rows if "method" in entry.fields})
        raise UserError(f"--methods: {grid.name} has rows of {', '.join(methods)} only.")
    return kept


def chosen_columns(grid: Grid, choice: Choice) -> list[Entry]:
    """The columns; `length` among their fields is a share of the steps."""
    settings, datasets = list(grid.settings), choice.datasets or grid.datasets or (None,)
    fixed = [setting for setting in grid.settings if "data" in setting.fields or setting.published]
    if fixed and choice.datasets:
        settings = [each for each in grid.settings if each.fields.get("data") in choice.datasets]
        datasets = (None,)
        if not settings:
            have = sorted({str(each.fields["data"]) for each in fixed if "data" in each.fields})
            raise UserError(f"--datasets: {grid.name} is about {', '.join(have)} only.")
    ratios: Sequence[float | None] = choice.ratios or (() if choice.counts else grid.ratios) or [None]
    columns = []
    for data, setting, ratio, length in product(datasets, settings or [NO_SETTING], ratios, grid.lengths or [None]):
        words = [
            data if (data,) != grid.datasets else None,
            setting.name,
            f"{ratio:g}" if ratio is not None and (ratio,) != grid.ratios else None,
            f"{100 * length:g}% of the steps" if length is not None else None,
        ]
        name = " ".join(word for word in words if word) or data or "all"
        given = {"data": data, "ood_ratio": ratio, "length": length}
        fields = setting.fields | {key: value for key, value in given.items() if value is not None}
        columns.append(Entry(name=name, published=setting.published, **fields))
    return columns


def make_cell(grid: Grid, choice: Choice, row: Entry, column: Entry) -> Cell:
    """The plans of one cell, made to fit the data, and in which ways they are not the paper's.

    The paper's number is that of the grid's own split: it is left out where another one was asked for.
    """
    paper = grid.paper.value(row.name, column.name)
    if row.published or column.published:
        return Cell(row.name, column.name, paper=paper, problem="published number only")
    if taken := set_names(choice, row, column):
        raise UserError(f"{taken[0]} cannot be set for all runs: rows or columns of {grid.name} are named after it.")
    options = {**grid.fields.get("options", {}), **row.fields.get("options", {})}
    own = {**grid.fields, **column.fields, **row.fields, "scale": choice.scale, "options": options}
    length = own.pop("length", None)
    fields = apply_assignments({**own, **choice.fields}, list(choice.settings))
    if choice.counts:
        fields.pop("ood_ratio", None)
    try:
        plan, unlike = fitted(Recipe(**{**fields, "seed": choice.seeds[0]}), length)
        if paper is not None and not choice.given.keys().isdisjoint(SPLIT_FIELDS):
            theirs = {key: value for key, value in fields.items() if key not in SPLIT_FIELDS}
            usual, _ = fitted(Recipe(**theirs, **{key: own[key] for key in SPLIT_FIELDS if key in own}), length)
            paper = paper if all(getattr(plan, key) == getattr(usual, key) for key in SPLIT_FIELDS) else None
    except UserError as error:
        raise UserError(f"{grid.name}, {row.name}, {column.name}: {error}") from None
    # nothing but the seed depends on the seed
    plans = tuple(plan.changed(seed=seed, recipe={**plan.recipe, "seed": seed}) for seed in choice.seeds)
    return Cell(row.name, column.name, plans, paper, unlike)


def set_names(choice: Choice, row: Entry, column: Entry) -> list[str]:
    """What is set for all runs although this row or column is about it."""
    asked, named = choice.given, {*column.fields, *row.fields} - {"options", "preset"}
    return sorted(named & asked.keys()) + sorted(row.fields.get("options", {}).keys() & asked.get("options", {}).keys())


def fitted(recipe: Recipe, length: float | None) -> tuple[Plan, tuple[str, ...]]:
    """The plan, with a total that fits at its ratio and its own length, and in which ways it is not the paper's."""
    from osp.engine.data import largest_pool
    from osp.methods.registry import get

    plan = make_plan(recipe)
    method, largest = get(plan.method), largest_pool(plan)
    smaller = largest is not None and plan.unlabeled is not None and plan.unlabeled > largest
    changes: dict[str, Any] = {"unlabeled": largest} if smaller else {}
    if length is not None:
        changes["steps"] = max(1, round(length * plan.steps))
    if changes:
        plan = make_plan(recipe.changed(**changes))
    marks = {
        SMALLER_TOTAL: smaller,
        SMALLER_BUDGET: plan.steps < method.paper_steps or plan.scale != "paper",
        RECONSTRUCTION: RECONSTRUCTION in method.reference,
    }
    return plan, tuple(mark for mark, holds in marks.items() if holds)
