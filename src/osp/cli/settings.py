"""`osp settings`: every field of a recipe and every option of a method, with default and meaning."""

from __future__ import annotations

from typing import Annotated

import typer

from osp.cli.lists import options_of
from osp.cli.text import columns, console, plain, say
from osp.recipe.fields import GROUPS


def settings(
    method: Annotated[str | None, typer.Argument(help="Show the options of this method too.")] = None,
) -> None:
    """Show every setting of a run with its default and meaning, and with METHOD the method's options as well.

    Each can stand in a recipe file (`steps: 500`) or behind `--set` (`--set steps=500`).

    Examples:

    - `osp settings`

    - `osp settings fixmatch`
    """
    options = []
    if method is not None:
        from osp.methods import get

        options = options_of(get(method))
    tables = {
        title: [(name, text.unset, text.meaning) for name, text in fields.items()] for title, fields in GROUPS.items()
    }
    tables[f"Options of {method} (`osp methods {method} --preset paper`: as published)"] = options
    width = max(len(row[0]) for rows in tables.values() for row in rows)
    shown = console()
    for title, rows in tables.items():
        if rows:
            shown.print(plain(title, "bold"))
            shown.print(columns(*((name.ljust(width), *rest) for name, *rest in rows), padding=(0, 1)))
            say()
    if method is None:
        say("`osp settings METHOD` adds the options of a method: learning rate, batch size and so on.")
    say("Use any of them as `osp train --set steps=500 --set lr=0.01`, or as `steps: 500` in a recipe file (--recipe).")
