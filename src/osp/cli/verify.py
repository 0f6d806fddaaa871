"""`osp verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.text import say


def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Runs, fits, sorted folders or stores.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Only what is wrong.")] = False,
) -> None:
    """Read every file of a run, a fit or a store, or the journal of a sort, and say what is wrong.

    Checksums, forms, links and figures are checked; of sorted photos, whether each could be put back. No backbone is
    loaded. Nothing is changed and no code from the folder is run. The exit code is 0 if nothing is wrong, 1 if
    something is.

    Example: `osp verify runs/first`
    """
    from osp.verify import verify as check

    whole = True
    for folder in folders:
        for verdict in check(folder):
            whole = whole and verdict.whole
            for problem in verdict.problems:
                say(f"{verdict.path}: DAMAGED: {problem}")
            if verdict.interrupted:
                say(f"{verdict.path}: INTERRUPTED: {verdict.interrupted}")
            for note in () if quiet else verdict.notes:
                say(f"{verdict.path}: note: {note}")
            if verdict.whole and not quiet:
                checks = f"{len(verdict.checked)} check{'s' * (len(verdict.checked) != 1)}"
                say(f"{verdict.path}: nothing is wrong with this {verdict.kind} ({checks}).")
    if not whole:
        raise typer.Exit(1)
