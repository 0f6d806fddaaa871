"""`osp bench`: the paper's tables and figures from a store of runs, and what a step costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from osp.cli.bench import options, running, store
from osp.cli.text import console, plain, say, tell


class Tables(TyperGroup):
    """A name that is no command is a table, or the file of one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = with_address(args) or ["--help"]
        if args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Also the names of the tables, and what can be written behind one: a table is no command that is listed."""
        from osp.bench.grid import names

        super().format_help(ctx, formatter)
        console().print(plain(f" Tables and figures: {', '.join(names())}; or a file of your own, mine.yaml."))
        table = self.commands["run"]
        table.format_help(type(ctx)(table, info_name=ctx.info_name, parent=ctx.parent), formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


def with_address(words: list[str]) -> list[str]:
    """`--ray` with the address that it may go without: a word behind it is one where it has a colon, else a table.

    >>> with_address(["--ray", "table1"]), with_address(["table1", "--ray", "head:6379"])
    (['--ray', 'auto', 'table1'], ['table1', '--ray', 'head:6379'])
    >>> with_address([])
    []
    """
    found: list[str] = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        found.append(word)
        if word == "--ray" and following != "auto" and ":" not in following:
            found.append("auto")
    return found


app = typer.Typer(cls=Tables, context_settings={"help_option_names": ["-h", "--help"]})

app.command(hidden=True)(running.run)
app.command("list")(store.list_tables)
app.command()(store.status)
app.command()(store.export)


@app.command()
def speed(
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = options.DEFAULT_OUT,
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


@app.command()
def cost(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; all if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for cost.json.")] = options.DEFAULT_OUT,
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


@app.callback()
def bench() -> None:
    """Rerun the paper's tables and figures, or measure what a step costs. Runs are kept and never repeated.

    Examples:

    - `osp bench list` (what there is, and how long it takes)

    - `osp bench table1 --datasets digits --scale demo --seeds 0-1 --jobs 2`

    - `osp bench table5 figure4a --data-dir DIR --seeds 0-4`

    - `osp bench table1 --ray` or `--slurm` (on many machines; docs/scale.md)

    - `osp bench mine.yaml` (a table of your own; docs/bench.md)
    """
