"""`osp verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.text import say


def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Run folders, photo models or stores.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Only what is wrong.")] = False,
) -> None:
    """Read every file of a run, a photo model or a store, and say what is wrong: checksums, forms, links, figures.

    Nothing is changed and no code from the folder is run. The exit code is 0 where all is whole, 1 where something is
    not.

    Example: `osp verify runs/first`
    """
    from osp.verify import verify as check

    whole = True
    for folder in folders:
        for verdict in check(folder):
            whole = whole and verdict.whole
            for problem in verdict.problems:
                say(f"{verdict.path}: DAMAGED: {problem}")
            for note in () if quiet else verdict.notes:
                say(f"{verdict.path}: note: {note}")
            if verdict.whole and not quiet:
                say(f"{verdict.path}: this {verdict.kind} is whole ({len(verdict.checked)} checks).")
    if not whole:
        raise typer.Exit(1)
