"""`osp bench speed` and `osp bench cost`: what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from osp.cli.text import say, tell


def speed(
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = Path("runs/bench"),
    network: Annotated[list[str] | None, typer.Option(help="cnn or wrn-28-2; repeatable; both if not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the table shows their median.")] = 5,
    growth: Annotated[bool, typer.Option(help="Also measure by batch size, classes and size of the pool.")] = True,
) -> None:
    """What a step of OSP costs, against its bare computation and against published code. Takes some minutes.

    Example: `osp bench speed --network cnn --no-growth`
    """
    from osp.bench import speed
    from osp.bench.workload import CASES

    _report(speed.speed(network or list(CASES), repeats, out, growth, tell), speed.speed_tables)
    say(f"\n{out / 'speed.json'}   {out / 'speed.png'}")


def cost(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; all if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for cost.json.")] = Path("runs/bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the table shows their median.")] = 5,
) -> None:
    """What a step of each method costs, in images and in time relative to Supervised.

    Example: `osp bench cost fixmatch osp`
    """
    from osp.bench import speed

    _report(speed.cost(methods or [], repeats, out, tell), speed.cost_table)
    say(f"\n{out / 'cost.json'}")


def _report(found: dict[str, Any], table: Callable[[dict[str, Any]], str]) -> None:
    say("\n".join(f"{key}: {value}" for key, value in found["machine"].items()))
    say(f"\n{table(found)}")
