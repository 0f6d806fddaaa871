"""`osp bench`: the paper's tables and figures from a store of runs, and what a step costs."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from osp.cli.bench import measuring, running, store
from osp.cli.text import console, plain


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


app = typer.Typer(
    cls=Tables,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(hidden=True)(running.run)
app.command("list")(store.list_tables)
app.command()(store.status)
app.command()(store.export)
app.command()(measuring.speed)
app.command()(measuring.cost)


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
