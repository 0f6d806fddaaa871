"""`osp report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.text import say
from osp.errors import user_path


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished `osp train` or `osp fit`.")],
    compare: Annotated[Path | None, typer.Option(help="Folder of a run to compare with, such as a baseline's.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: report.html in the run's folder.")] = None,
) -> None:
    """One self-contained page about a run: scores, a map of features, confusions, images, where it looks; of
    `osp train` also curves.

    Examples:

    - `osp report runs/demo/osp`

    - `osp report runs/demo/osp --compare runs/demo/supervised`
    """
    from osp.report import write_report

    given = [None if path is None else user_path(path) for path in (compare, out)]
    say(f"Page: {write_report(user_path(run), *given)}")
