"""Tables as data: a grid file names rows, columns, the number that is shown, and what the paper has there.

A column is a data set x a setting x a share of OOD images x a length, whichever of them the file has; a row is a
method, perhaps with options. `osp.bench.cells` makes the runs of them. A user's own file has the same form as those in
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
from collections.abc import Collection, Mapping
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from osp.errors import UserError, short, suggest
from osp.recipe import Recipe, explain, read_fields
from osp.recipe.code import without_code

AXES = ("method", "options", "seed", "scale")
"""Fields of a recipe that a grid file or the command sets elsewhere."""

MEASURES = {
    "accuracy": "test accuracy (%)",
    "val_accuracy": "validation accuracy (%), for choosing",
    "auroc": "AUROC (%), ID against OOD test images, by the reported score",
    "own_auroc": "AUROC (%), ID against OOD test images, by the method's own score",
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
NAME = re.compile(r"\w[\w.-]{0,99}")
"""What a grid file may call itself: files are written under this name, beside others' and never elsewhere."""
NEITHER = ("angle", "interclass_variance", "purity", "recall")
"""Neither is better: nothing is bold."""


def check_measure(name: str) -> str:
    """A number of result.json: by name, or `scores.NAME.auroc`, `other_ood.NAME.fpr95`."""
    group, _, rest = name.partition(".")
    if name in MEASURES or (group in ("scores", "other_ood") and rest.endswith((".auroc", ".fpr95"))):
        return name
    raise ValueError(
        f"unknown measure {short(name)}.{suggest(name, MEASURES)} Also scores.NAME.auroc and other_ood.NAME.fpr95"
    )


Measure = Annotated[str, AfterValidator(check_measure)]


class Entry(BaseModel):
    """A row or a setting: its name and the fields of the recipe that make it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    published: bool = False
    """Known from a publication only; never run."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """A plain name is a row of that method; a row without a name is called after its method and options."""
        given = {"method": value} if isinstance(value, str) else value
        return {"name": row_name(given), **given} if isinstance(given, dict) and "method" in given else given

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


class Remark(BaseModel):
    """A note under the table, shown where it applies; a plain text always does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    where: tuple[str, ...] = ()
    """Rows and data sets that it is about: shown only with all of them."""
    published: bool = False
    """About the published numbers: shown only beside some."""

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class Grid(BaseModel):
    """A table or the runs behind a figure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    about: str = ""
    aliases: tuple[str, ...] = ()
    kind: Literal["table", "figure", "settings"] = "table"
    measure: Measure = "accuracy"
    also: tuple[Measure, ...] = ()
    methods: tuple[str, ...] = ()
    rows: tuple[Entry, ...] = ()
    datasets: tuple[str, ...] = ()
    settings: tuple[Entry, ...] = ()
    ratios: tuple[float, ...] = ()
    lengths: tuple[float, ...] = ()
    fields: dict[str, Any] = Field(default_factory=dict)
    paper: Paper = Field(default_factory=Paper)
    notes: tuple[Remark, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _first_of_several(cls, fields: Any) -> Any:
        """`measure` may be a list: the table shows the first, and `also` the others."""
        if isinstance(fields, dict) and isinstance(measures := fields.get("measure"), list) and measures:
            return {**fields, "measure": measures[0], "also": [*measures[1:], *(fields.get("also") or [])]}
        return fields

    @field_validator("ratios", "lengths")
    @classmethod
    def _share(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 <= each <= 1 for each in value):
            raise ValueError("shares lie between 0 and 1")
        return value

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The rows, whichever way the file gives them."""
        return self.rows or tuple(map(Entry.model_validate, self.methods))


def row_name(fields: Mapping[str, Any]) -> str:
    """`osp`, or `osp, alpha=0.0`."""
    options = fields.get("options")
    words = [f"{key}={value}" for key, value in options.items()] if isinstance(options, Mapping) else []
    return ", ".join([str(fields["method"]), *words])


# Reading


@cache
def names() -> tuple[str, ...]:
    """Of all tables that come with the package: tables first, then figures."""
    found = [Path(str(file)).stem for file in resources.files("osp.bench").joinpath("tables").iterdir()]
    return tuple(sorted(found, key=lambda name: (name.startswith("figure"), name)))


@cache
def aliases() -> dict[str, str]:
    """Other names, such as the paper's numbers: figure4a."""
    return {alias: name for name in names() for alias in packaged(name).aliases}


@cache
def packaged(name: str) -> Grid:
    with resources.as_file(resources.files("osp.bench").joinpath("tables", f"{name}.yaml")) as path:
        return read_grid(path)


def find_grid(name: str, trusted: Collection[str] = ()) -> Grid:
    """A table by its name, by another name of it, or the user's own file.

    A file may name files of code that are among the `trusted` ones, which the user has named: it says which rows and
    options they get, never which code is run.
    """
    plain = name.lower().replace("_", "-")
    numbered = re.sub(r"^table[-. ]?(\d)", r"table\1", re.sub(r"^fig(?:ure)?[-. ]?(\d)", r"figure\1", plain))
    own = Path(name).expanduser()
    for each in (plain, numbered):
        if each in names():
            return packaged(each)
    if name.endswith((".yaml", ".yml")):
        return read_grid(own, trusted)
    for each in (plain, numbered):  # last: every table has to be read for its other names
        if each in aliases():
            return packaged(aliases()[each])
    if own.exists():
        return read_grid(own, trusted)
    hint = suggest(name, [*names(), *aliases(), "speed", "cost", "list", "status", "export"])
    raise UserError(f"Unknown table {name!r}.{hint} `osp bench list` shows them; a file of your own: mine.yaml")


def read_grid(path: Path, trusted: Collection[str] = ()) -> Grid:
    """A grid file, validated."""
    fields = read_fields(path, "grid file")
    if not NAME.fullmatch(str(fields.get("name", "table"))):
        raise UserError(
            f"{path}: invalid name {short(fields['name'])}: the files of a table are called after it. Use letters, "
            "digits, dots, dashes and underscores, at most 100."
        )
    try:
        grid = Grid(**{"name": path.stem, **fields})
        check(grid, trusted)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, Grid, 'grid file')}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return grid


def check(grid: Grid, trusted: Collection[str] = ()) -> None:
    """Refuse what cannot be meant: unknown fields with near misses, code, numbers that do not fit."""
    known = [name for name in Recipe.model_fields if name not in AXES]
    rows, settings = ("row", grid.rows, [*known, "method", "options"]), ("setting", grid.settings, known)
    for what, entries, allowed in (rows, settings):
        if len({entry.name for entry in entries}) < len(entries):
            raise UserError(f"two of the {what}s have the same name; give each its own.")
        for entry in entries:
            for key in [key for key in entry.fields if key not in allowed]:
                hint = suggest(key, [*allowed, "name", "published"])
                raise UserError(f"unknown field {key!r} in the {what} {entry.name!r}.{hint}")
    for key in grid.fields:
        if key not in (*known, "options"):
            raise UserError(f"unknown field {key!r} in `fields`.{suggest(key, [*known, 'options'])}")
    given = [("fields", grid.fields), *((entry.name, entry.fields) for entry in (*grid.rows, *grid.settings))]
    for place, fields in given:
        options = fields.get("options", {})
        if not (isinstance(options, dict) and all(isinstance(key, str) for key in options)):
            raise UserError(f"`options` in {place!r} are {short(options)}; write names and values: {{batch: 8}}")
        without_code(fields, "it", trusted, partial(_named_by, grid))
    for key, name in (*(("method", name) for name in grid.methods), *(("data", name) for name in grid.datasets)):
        without_code({key: name}, "it", trusted, partial(_named_by, grid))
    if grid.kind == "table" and not grid.entries:
        raise UserError("it has neither `methods` nor `rows`: there is nothing to run.")
    about = [*(entry.name for entry in grid.entries), *grid.datasets, *(s.fields.get("data") for s in grid.settings)]
    for name in (name for note in grid.notes for name in note.where):
        if name not in about:
            raise UserError(f"a note is about {name!r}, which is neither a row nor a data set of this table.")
    if grid.rows and grid.methods:
        raise UserError("`methods` and `rows` both give the rows; leave one out.")
    for row, values in grid.paper.rows.items():
        if len(values) != len(grid.paper.columns):
            raise UserError(
                f"the paper's row {row!r} has {len(values)} numbers for {len(grid.paper.columns)} columns; write null "
                "where there is none."
            )


def _named_by(grid: Grid, key: str, name: str) -> str:
    """How a command of the bench names a file of code, with all rows or data sets: one alone leaves out the others."""
    if key not in ("method", "data"):
        return f"--set {key}={name}"
    methods = (str(entry.fields.get("method", entry.name)) for entry in grid.entries)
    every = dict.fromkeys([*(methods if key == "method" else grid.datasets), name])
    return f"--{'methods' if key == 'method' else 'datasets'} {','.join(every)}"
