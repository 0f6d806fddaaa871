"""The cells of a table: what a grid file and the command ask for, as one recipe and plan for each cell and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from osp.bench.grid import Entry, Grid, method_row
from osp.errors import UserError, suggest
from osp.plugins import is_file, same_path
from osp.recipe import Plan, Recipe, apply_assignments, make_plan
from osp.recipe.code import files_in


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
        fields = apply_assignments(self.fields, list(self.settings))
        return (*self.methods, *self.datasets, *files_in(fields).values())


@dataclass(frozen=True)
class Cell:
    """One number of the table: a recipe for each seed."""

    row: str
    column: str
    recipes: tuple[Recipe, ...]
    plans: tuple[Plan, ...]
    paper: float | None = None
    marks: tuple[str, ...] = ()
    problem: str = ""
    """Why it cannot be run."""


@dataclass(frozen=True)
class Table:
    """A grid with its cells, row by row."""

    grid: Grid
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    choice: Choice

    def cell(self, row: str, column: str) -> Cell:
        return next(cell for cell in self.cells if (cell.row, cell.column) == (row, column))

    @property
    def about(self) -> str:
        """What it shows, and on which data sets where those of the grid file are not meant."""
        other = [name for name in self.choice.datasets if set(self.choice.datasets) - set(self.grid.datasets)]
        return f"{self.grid.about} Here: {', '.join(other)}.".lstrip() if other else self.grid.about

    def notes(self, measure: str) -> list[str]:
        """The notes of the grid file that apply where this number is shown."""
        names = {*self.rows, *(self.choice.datasets or self.grid.datasets), *(plan.data for plan in self.plans)}
        beside = measure == self.grid.measure and any(cell.paper is not None for cell in self.cells)
        return [n.text for n in self.grid.notes if names.issuperset(n.where) and (beside or not n.published)]

    @property
    def plans(self) -> list[Plan]:
        return [plan for cell in self.cells for plan in cell.plans]

    @property
    def recipes(self) -> list[Recipe]:
        return [recipe for cell in self.cells for recipe in cell.recipes]


def expand(grid: Grid, choice: Choice) -> Table:
    """Every cell with its recipes and plans. A method that is not installed makes a cell that says so."""
    check_names(grid, choice)
    entries = chosen_rows(grid, choice)
    columns = chosen_columns(grid, choice)
    cells = []
    for entry, (column, fields) in product(entries, columns):
        if grid.kind == "settings":
            continue
        cells.append(make_cell(grid, choice, entry, column, fields))
    rows = tuple(entry.name for entry in entries)
    return Table(grid, rows, tuple(name for name, _ in columns), tuple(cells), choice)


def check_names(grid: Grid, choice: Choice) -> None:
    """Unknown methods and data sets are refused before anything is run; near misses are named."""
    from osp.engine.data import data_sets, known_set
    from osp.methods.registry import available

    for name in choice.methods:
        if not is_file(name) and name not in (*available(), *(entry.name for entry in grid.entries)):
            raise UserError(f"--methods: unknown method {name!r}.{suggest(name, available())}")
    for name in choice.datasets:
        if not known_set(name):
            raise UserError(f"--datasets: unknown data set {name!r}.{suggest(name, data_sets())}")
    for name in grid.datasets:
        if not known_set(name):
            raise UserError(f"{grid.name}: unknown data set {name!r}.{suggest(name, data_sets())}")
    for ratio in choice.ratios:
        if not 0 <= ratio <= 1:
            raise UserError(f"--ratios: invalid value {ratio:g}: shares of OOD images lie between 0 and 1.")
    for entry in grid.entries:
        method = str(entry.fields.get("method", entry.name))
        near = available()
        if not entry.published and method not in near and not is_file(method):
            raise UserError(f"{grid.name}: unknown method {method!r} in the row {entry.name!r}.{suggest(method, near)}")


def chosen_rows(grid: Grid, choice: Choice) -> list[Entry]:
    if not choice.methods or not grid.entries:
        return list(grid.entries)
    if not grid.rows:
        return [method_row(name) for name in choice.methods]
    asked = {same_path(name) for name in choice.methods}
    kept = [e for e in grid.rows if {same_path(str(e.fields.get("method"))), e.name} & asked]
    listed = {str(entry.fields.get("method")) for entry in grid.rows}
    plain = all(entry.fields.keys() <= {"method"} for entry in grid.rows)
    if plain:  # rows that are nothing but methods: others may join them
        kept += [method_row(name) for name in choice.methods if name not in listed]
    if not kept:
        methods = sorted({str(entry.fields["method"]) for entry in grid.rows if "method" in entry.fields})
        raise UserError(f"--methods: {grid.name} has rows of {', '.join(methods)} only.")
    return kept


def chosen_columns(grid: Grid, choice: Choice) -> list[tuple[str, dict[str, Any]]]:
    """Name and fields of each column; `published: True` among the fields where it is never run."""
    fixed = [setting for setting in grid.settings if "data" in setting.fields or setting.published]
    if fixed and choice.datasets:
        settings = [each for each in grid.settings if each.fields.get("data") in choice.datasets]
        if not settings:
            have = sorted({str(each.fields["data"]) for each in fixed if "data" in each.fields})
            raise UserError(f"--datasets: {grid.name} is about {', '.join(have)} only.")
        datasets: Sequence[str | None] = [None]
    else:
        settings = list(grid.settings)
        datasets = choice.datasets or grid.datasets or [None]
    ratios: Sequence[float | None] = choice.ratios or grid.ratios or [None]
    columns = []
    each_setting: Sequence[Entry | None] = settings or [None]
    for data, setting, ratio, length in product(datasets, each_setting, ratios, grid.lengths or [None]):
        words = [
            data if data is not None and (data,) != grid.datasets else None,
            setting.name if setting is not None else None,
            f"{ratio:g}" if ratio is not None and (ratio,) != grid.ratios else None,
            f"{length:.0%} of the steps" if length is not None else None,
        ]
        fields: dict[str, Any] = {} if setting is None else {**setting.fields, "published": setting.published}
        given = {"data": data, "ood_ratio": ratio, "length": length}
        fields |= {key: value for key, value in given.items() if value is not None}
        columns.append((" ".join(word for word in words if word) or data or "all", fields))
    return columns


def make_cell(grid: Grid, choice: Choice, entry: Entry, column: str, column_fields: dict[str, Any]) -> Cell:
    """The recipes of one cell, made to fit the data, and the marks that follow from them."""
    paper = grid.paper.value(entry.name, column)
    fields = dict(column_fields)
    length = fields.pop("length", None)
    if fields.pop("published", False) or entry.published:
        return Cell(entry.name, column, (), (), paper, problem="published number only")
    options = {**grid.fields.get("options", {}), **entry.fields.get("options", {})}
    fields = {**grid.fields, **fields, **entry.fields, **choice.fields, "scale": choice.scale, "options": options}
    if ("id_count" in choice.fields or "ood_count" in choice.fields) and "ood_ratio" not in choice.fields:
        fields.pop("ood_ratio", None)  # numbers of images take the place of the ratio
    fields = apply_assignments(fields, list(choice.settings))
    try:
        recipe, plan, smaller = fitted(Recipe(**{**fields, "seed": choice.seeds[0]}), length)
    except UserError as error:
        raise UserError(f"{grid.name}, {entry.name}, {column}: {error}") from None
    recipes = tuple(recipe.changed(seed=seed) for seed in choice.seeds)
    plans = tuple(plan.changed(seed=each.seed, recipe=each.asked()) for each in recipes)  # nothing else depends on it
    return Cell(entry.name, column, recipes, plans, paper, tuple(marks_of(plan, smaller)))


def fitted(recipe: Recipe, length: float | None) -> tuple[Recipe, Plan, bool]:
    """The recipe with a total that fits at its ratio and a length of its own; whether the total was made smaller."""
    from osp.engine.data import largest_pool

    plan = make_plan(recipe)
    largest = largest_pool(plan)
    smaller = largest is not None and plan.unlabeled is not None and plan.unlabeled > largest
    changes: dict[str, Any] = {"unlabeled": largest} if smaller else {}
    if length is not None:
        changes["steps"] = max(1, round(length * plan.steps))
    if not changes:
        return recipe, plan, False
    recipe = recipe.changed(**changes)
    return recipe, make_plan(recipe), smaller


SMALLER_TOTAL = "smaller total"
SMALLER_BUDGET = "smaller budget"
RECONSTRUCTION = "reconstruction"
DATA_VARIANT = "data variant"


def marks_of(plan: Plan, smaller_total: bool) -> list[str]:
    """In which ways a run is not the paper's, as far as its plan tells."""
    from osp.methods.registry import get

    method = get(plan.method)
    marks = [SMALLER_TOTAL] if smaller_total else []
    if plan.steps < method.paper_steps or plan.scale != "paper":
        marks.append(SMALLER_BUDGET)
    if RECONSTRUCTION in method.reference:
        marks.append(RECONSTRUCTION)
    return marks
