"""`osp bench`: what a step costs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from osp.cli.text import say
from osp.errors import printable

app = typer.Typer(
    help="Measure the speed of a training step, or what each method costs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def bench() -> None:
    """Measurements that end in a table, a JSON file and, for speed, a picture."""


@app.command()
def speed(
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = Path("runs/bench"),
    network: Annotated[list[str] | None, typer.Option(help="cnn or wrn-28-2; repeatable; both if not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the table shows their median.")] = 5,
    growth: Annotated[bool, typer.Option(help="Also measure by batch size, classes and size of the pool.")] = True,
) -> None:
    """What a step of OSP costs, against its bare computation and against published code. Takes some minutes.

    Example: `osp bench speed --network cnn --no-growth`
    """
    from osp.bench.speed import run, table
    from osp.bench.workload import CASES

    _report(run(network or list(CASES), repeats, out, growth, _tell), table)
    say(f"\n{out / 'speed.json'}   {out / 'speed.png'}")


@app.command()
def cost(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; all if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for cost.json.")] = Path("runs/bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the table shows their median.")] = 5,
) -> None:
    """What a step of each method costs, in images and in time relative to Supervised.

    Example: `osp bench cost fixmatch osp`
    """
    from osp.bench.cost import run, table

    _report(run(methods or [], repeats, out, _tell), table)
    say(f"\n{out / 'cost.json'}")


def _tell(text: str) -> None:
    print(printable(text, lines=True), file=sys.stderr, flush=True)


def _report(found: dict[str, Any], table: Any) -> None:
    for key, value in found["machine"].items():
        say(f"{key}: {value}")
    say()
    say(table(found))
