"""Tables as data: a grid file names rows, columns, the number that is shown, and what the paper has there.

A column is a data set x a setting x a share of OOD images x a length, whichever of them the file has; a row is a
method, perhaps with options. Each cell is one recipe for each seed. A user's own file has the same form as those in
`tables/` and is read as carefully: nothing in it is code, and it cannot name any.

    title: My table
    measure: auroc
    methods: [t2t, osp]
    datasets: [digits]
    ratios: [0.3, 0.6]
    fields: {labels_per_class: 5}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from osp.errors import UserError, short, suggest
from osp.recipe import Plan, Recipe, apply_assignments, explain, make_plan, read_fields

AXES = ("method", "options", "seed", "scale")
"""Fields of a recipe that a grid file or the command sets elsewhere."""

MEASURES = {
    "accuracy": "test accuracy (%)",
    "val_accuracy": "validation accuracy (%), for choosing",
    "auroc": "AUROC (%), ID against OOD test images, by the method's score",
    "msp_auroc": "AUROC (%) by 1 - max softmax",
    "pool_auroc": "AUROC (%) in the pool",
    "fpr95": "OOD test images accepted where 95 % of ID ones are (%)",
    "aupr_id": "AUPR (%), ID as positive",
    "aupr_ood": "AUPR (%), OOD as positive",
    "open_accuracy": 'balanced accuracy (%) over the classes and "none of them"',
    "calibration_error": "expected calibration error (%)",
    "purity": "ID among the kept images (%)",
    "recall": "kept among the ID images (%)",
    "angle": "angle between ID and OOD features (degrees)",
    "interclass_variance": "variance between class means",
    "seconds": "seconds",
}
LOWER = ("fpr95", "calibration_error", "seconds")
"""Smaller is better."""
NEITHER = ("angle", "interclass_variance", "purity", "recall")
"""Neither is better: nothing is bold."""


class Entry(BaseModel):
    """A row or a setting: its name and the fields of the recipe that make it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    published: bool = False
    """Known from a publication only; never run."""

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Paper(BaseModel):
    """Published numbers: by row, in the order of `columns`; null where there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: tuple[str, ...] = ()
    rows: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)

    def value(self, row: str, column: str) -> float | None:
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]


class Grid(BaseModel):
    """A table or the runs behind a figure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    about: str = ""
    aliases: tuple[str, ...] = ()
    kind: Literal["table", "figure", "settings"] = "table"
    measure: str = "accuracy"
    also: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    rows: tuple[Entry, ...] = ()
    datasets: tuple[str, ...] = ()
    settings: tuple[Entry, ...] = ()
    ratios: tuple[float, ...] = ()
    lengths: tuple[float, ...] = ()
    fields: dict[str, Any] = Field(default_factory=dict)
    paper: Paper = Field(default_factory=Paper)
    notes: tuple[str, ...] = ()

    @field_validator("rows", "settings", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A plain name is a row of that method."""
        if not isinstance(value, list | tuple):
            return value
        return [{"name": each, "method": each} if isinstance(each, str) else each for each in value]

    @field_validator("measure", "also")
    @classmethod
    def _known(cls, value: Any) -> Any:
        for each in (value,) if isinstance(value, str) else value:
            check_measure(each)
        return value

    @field_validator("ratios", "lengths")
    @classmethod
    def _share(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 <= each <= 1 for each in value):
            raise ValueError("shares lie between 0 and 1")
        return value

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The rows, whichever way the file gives them."""
        return self.rows or tuple(method_row(name) for name in self.methods)


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
    def plans(self) -> list[Plan]:
        return [plan for cell in self.cells for plan in cell.plans]

    @property
    def recipes(self) -> list[Recipe]:
        return [recipe for cell in self.cells for recipe in cell.recipes]


def method_row(name: str) -> Entry:
    return Entry(name=name, method=name)


# Reading


@cache
def names() -> tuple[str, ...]:
    """Of all tables that come with the package: tables first, then figures."""
    found = [Path(str(file)).stem for file in resources.files("osp.bench").joinpath("tables").iterdir()]
    return tuple(sorted((name for name in found), key=lambda name: (name.startswith("figure"), name)))


@cache
def aliases() -> dict[str, str]:
    """Other names, such as the paper's numbers: figure4a."""
    return {alias: name for name in names() for alias in packaged(name).aliases}


@cache
def packaged(name: str) -> Grid:
    with resources.as_file(resources.files("osp.bench").joinpath("tables", f"{name}.yaml")) as path:
        return read_grid(path)


def find_grid(name: str) -> Grid:
    """A table by its name, by another name of it, or the user's own file."""
    plain = name.lower().replace("_", "-")
    numbered = re.sub(r"^table[-. ]?(\d)", r"table\1", re.sub(r"^fig(?:ure)?[-. ]?(\d)", r"figure\1", plain))
    for each in (plain, numbered):
        if each in names() or each in aliases():
            return packaged(aliases().get(each, each))
    if Path(name).expanduser().exists() or name.endswith((".yaml", ".yml")):
        return read_grid(Path(name).expanduser())
    hint = suggest(name, [*names(), *aliases(), "speed", "cost", "list", "status", "export"])
    raise UserError(f"Unknown table {name!r}.{hint} `osp bench list` shows them; a file of your own: mine.yaml")


def read_grid(path: Path) -> Grid:
    """A grid file, validated."""
    fields = read_fields(path, "grid file")
    try:
        grid = Grid(**{"name": path.stem, **fields})
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, Grid, 'grid file')}") from None
    try:
        check(grid)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return grid


def check(grid: Grid) -> None:
    """Refuse what cannot be meant: unknown fields with near misses, code, numbers that do not fit."""
    known = [name for name in Recipe.model_fields if name not in AXES]
    for what, entries in (("row", grid.rows), ("setting", grid.settings)):
        seen = [entry.name for entry in entries]
        if len(set(seen)) < len(seen):
            raise UserError(f"two of the {what}s have the same name; give each its own.")
        for entry in entries:
            allowed = [*known, "method", "options"] if what == "row" else known
            for key in entry.fields:
                if key not in allowed:
                    hint = suggest(key, [*allowed, "name", "published"])
                    raise UserError(f"unknown field {key!r} in the {what} {entry.name!r}.{hint}")
            without_code(str(entry.fields.get("method", "")))
    for place, options in [
        ("fields", grid.fields.get("options")),
        *((e.name, e.fields.get("options")) for e in grid.rows),
    ]:
        if options is not None and not (isinstance(options, dict) and all(isinstance(key, str) for key in options)):
            raise UserError(f"`options` in {place!r} are {short(options)}; write names and values: {{batch: 8}}")
    for key in grid.fields:
        if key not in (*known, "options"):
            raise UserError(f"unknown field {key!r} in `fields`.{suggest(key, [*known, 'options'])}")
    for name in grid.methods:
        without_code(name)
    if grid.kind == "table" and not grid.entries:
        raise UserError("it has neither `methods` nor `rows`: there is nothing to run.")
    if grid.rows and grid.methods:
        raise UserError("`methods` and `rows` both give the rows; leave one out.")
    for row, values in grid.paper.rows.items():
        if len(values) != len(grid.paper.columns):
            raise UserError(
                f"the paper's row {row!r} has {len(values)} numbers for {len(grid.paper.columns)} columns; write null "
                "where there is none."
            )


def without_code(method: str) -> None:
    """A file must not say which code is run."""
    from osp.methods.registry import is_file

    if is_file(method):
        raise UserError(
            f"it names the method file {method}, and files do not say which code is run. If you trust it, name it "
            f"yourself: --methods {method}"
        )


def check_measure(name: str) -> str:
    """A number of result.json: by name, or `scores.NAME.auroc`, `other_ood.NAME.fpr95`."""
    group, _, rest = name.partition(".")
    if name in MEASURES or (group in ("scores", "other_ood") and rest.endswith((".auroc", ".fpr95"))):
        return name
    raise ValueError(
        f"unknown measure {name!r}.{suggest(name, MEASURES)} Also scores.NAME.auroc and other_ood.NAME.fpr95"
    )


# Expanding


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
    from osp.engine.data import data_sets
    from osp.methods.registry import available, is_file

    for name in choice.methods:
        if not is_file(name) and name not in (*available(), *(entry.name for entry in grid.entries)):
            raise UserError(f"--methods: unknown method {name!r}.{suggest(name, available())}")
    for name in choice.datasets:
        if name not in data_sets():
            raise UserError(f"--datasets: unknown data set {name!r}.{suggest(name, data_sets())}")
    for name in grid.datasets:
        if name not in data_sets():
            raise UserError(f"{grid.name}: unknown data set {name!r}.{suggest(name, data_sets())}")
    for ratio in choice.ratios:
        if not 0 <= ratio <= 1:
            raise UserError(f"--ratios: {ratio:g} will not do; shares of OOD images lie between 0 and 1.")
    for entry in grid.entries:
        method = str(entry.fields.get("method", entry.name))
        near = [*available(), *PLANNED]
        if not entry.published and method not in near:
            raise UserError(f"{grid.name}: unknown method {method!r} in the row {entry.name!r}.{suggest(method, near)}")


PLANNED = ("dac",)
"""Methods of our own tables that may be missing from an installation; their cells then say so."""


def chosen_rows(grid: Grid, choice: Choice) -> list[Entry]:
    if not choice.methods or not grid.entries:
        return list(grid.entries)
    if not grid.rows:
        return [method_row(name) for name in choice.methods]
    kept = [entry for entry in grid.rows if {entry.fields.get("method"), entry.name} & set(choice.methods)]
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
        if entry.fields.get("method") in PLANNED and "Unknown method" in str(error):
            return Cell(entry.name, column, (), (), paper, problem="method not installed")
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


# What the command's options say


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-4`, `0,2,5` or both.

    >>> parse_seeds("0-2,7")
    (0, 1, 2, 7)
    """
    seeds: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"--seeds {text!r}: write numbers, such as 0-4 or 0,1,2.")
        several = range(int(first), int(last if dash else first) + 1)
        if not 0 < len(several) <= 1000:
            raise UserError(f"--seeds {text!r}: {word.strip()} is no range; write the smaller number first.")
        seeds += several
    return tuple(dict.fromkeys(seeds))


def parse_ratios(text: str) -> tuple[float, ...]:
    """`0.3,0.6`."""
    try:
        return tuple(dict.fromkeys(float(word) for word in words_of(text)))
    except ValueError:
        raise UserError(f"--ratios {text!r}: write numbers from 0 to 1, such as 0.3,0.6.") from None


def words_of(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """`a,b` as a row of words."""
    parts = [] if text is None else [text] if isinstance(text, str) else list(text)
    return tuple(dict.fromkeys(word.strip() for part in parts for word in part.split(",") if word.strip()))
