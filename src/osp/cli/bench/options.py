"""What the commands of the bench have in common: their options, and what these say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osp.cli.text import complain
from osp.errors import UserError, short, user_path

if TYPE_CHECKING:
    from osp.bench.cells import Choice, Table
    from osp.bench.store import Store

MOST_SEEDS = 1000
ELSEWHERE = {
    "data": "--datasets",
    "method": "--methods",
    "ood_ratio": "--ratios",
    "scale": "--scale",
    "seed": "--seeds",
}
"""Fields of the recipe that name rows and columns, or have an option of their own."""
DEFAULT_STORE = Path("runs/store")
DEFAULT_OUT = Path("runs/bench")

Names = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help="Tables or figures; or a grid file.")]
Scale = Annotated[str, typer.Option(help="demo (seconds), cpu (minutes) or paper (as published).")]
Seeds = Annotated[str, typer.Option(help="Seeds: 0-4, or 0,1,2.")]
Methods = Annotated[str | None, typer.Option(help="Only these methods: osp,t2t.")]
Datasets = Annotated[str | None, typer.Option(help="Only these data sets; digits needs no file.")]
Ratios = Annotated[str | None, typer.Option(help="Only these shares of OOD images: 0.3,0.6.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run.")]
DataDir = Annotated[str | None, typer.Option(help="Folder of the data; else OSP_DATA, else your cache folder.")]
StoreFolder = Annotated[Path, typer.Option(help="Folder in which runs are kept and found again.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")]


def open_store(path: Path) -> Store:
    from osp.bench.store import Store

    return Store(user_path(path).absolute())


def tell_problems(*stores: Store) -> None:
    """Lines of a store that could not be read."""
    for problem in (each for store in stores for each in store.problems):
        complain(problem)


def choice_of(
    scale: str,
    seeds: str,
    methods: str | None = None,
    datasets: str | None = None,
    ratios: str | None = None,
    settings: list[str] | None = None,
    fields: dict[str, Any] | None = None,
) -> Choice:
    """The part of a table that was asked for."""
    from osp.bench.cells import Choice

    if scale not in ("demo", "cpu", "paper"):
        raise UserError(f"--scale {scale!r}: choose demo, cpu or paper.")
    for setting in settings or ():
        if (option := ELSEWHERE.get(key := setting.partition("=")[0].strip())) is not None:
            raise UserError(f"--set {key}: rows and columns are named after it; ask for others with {option}.")
    named = words_of(methods), words_of(datasets), parse_ratios(ratios)
    return Choice(scale, parse_seeds(seeds), *named, tuple(settings or ()), fields or {})


def tables_of(names: Iterable[str] | None, choice: Choice) -> list[Table]:
    """The tables of these names; without any, all that can be about these methods and data sets."""
    from osp.bench import grid
    from osp.bench.cells import expand

    if names:
        return [expand(grid.find_grid(name, choice.named), choice) for name in names]
    found, refused = [], None
    for name in grid.names():
        try:
            found.append(expand(grid.packaged(name), choice))
        except UserError as error:  # that table is about others
            refused = error
    if refused is not None and not any(table.plans for table in found):
        raise refused
    return found


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
        if max(len(first), len(last)) > 19:
            raise UserError(f"--seeds {short(text)}: {short(word.strip())} is too large for a seed.")
        begin, end = int(first), int(last if dash else first)
        if not 0 <= end - begin < MOST_SEEDS:
            raise UserError(
                f"--seeds {text!r}: {word.strip()} is no range of at most {MOST_SEEDS:,} seeds, the smaller one first."
            )
        seeds += range(begin, end + 1)
    return tuple(dict.fromkeys(seeds))


def parse_ratios(text: str | None) -> tuple[float, ...]:
    """`0.3,0.6`."""
    try:
        return tuple(dict.fromkeys(float(word) for word in words_of(text)))
    except ValueError:
        raise UserError(f"--ratios {text!r}: write numbers from 0 to 1, such as 0.3,0.6.") from None


def words_of(text: str | None) -> tuple[str, ...]:
    """`a,b` as a row of words."""
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))
