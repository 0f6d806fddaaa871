"""What the commands of the bench have in common: their options, and what these say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osp.errors import UserError, user_path

if TYPE_CHECKING:
    from osp.bench.grid import Choice
    from osp.bench.store import Store

DEFAULT_STORE = Path("runs/store")
DEFAULT_OUT = Path("runs/bench")

Names = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help="Tables or figures; or a grid file.")]
ScaleOption = Annotated[str, typer.Option(help="demo (seconds), cpu (minutes) or paper (as published).")]
SeedsOption = Annotated[str, typer.Option(help="Seeds: 0-4, or 0,1,2.")]
MethodsOption = Annotated[str | None, typer.Option(help="Only these methods: osp,t2t.")]
DatasetsOption = Annotated[str | None, typer.Option(help="Only these data sets; digits needs no file.")]
RatiosOption = Annotated[str | None, typer.Option(help="Only these shares of OOD images: 0.3,0.6.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run.")]
StoreOption = Annotated[Path, typer.Option(help="Folder in which runs are kept and found again.")]
JobsOption = Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")]


def open_store(path: Path) -> Store:
    from osp.bench.store import Store

    return Store(user_path(path).absolute())


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
    from osp.bench.grid import Choice, parse_ratios, parse_seeds, words_of

    if scale not in ("demo", "cpu", "paper"):
        raise UserError(f"--scale {scale!r}: choose demo, cpu or paper.")
    return Choice(
        scale,
        parse_seeds(seeds),
        words_of(methods),
        words_of(datasets),
        parse_ratios(ratios) if ratios else (),
        tuple(settings or ()),
        fields or {},
    )
