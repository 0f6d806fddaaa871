"""`osp report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.text import say
from osp.errors import user_path


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    compare: Annotated[Path | None, typer.Option(help="Folder of a run to compare with, such as a baseline's.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: report.html in the run's folder.")] = None,
) -> None:
    """One self-contained page about a run: curves, scores, a map of features, confusions, images, where it looks.

    Examples:

    - `osp report runs/demo/osp`

    - `osp report runs/demo/osp --compare runs/demo/supervised`
    """
    from osp.report import write_report

    other = None if compare is None else user_path(compare)
    path = write_report(user_path(run), other, None if out is None else user_path(out))
    say(f"Page: {path}")
