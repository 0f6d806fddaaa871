"""`osp.train` as users and the command call it: the engine's run, and its picture."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from osp.distributed import started_rank
from osp.engine import train as engine
from osp.engine.progress import Display, shown
from osp.recipe import Recipe
from osp.runs.run import Run


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    network: nn.Module | None = None,
    progress: bool = True,
    display: Display | None = None,
) -> Run:
    """Train what the recipe describes, and keep everything of the run in one folder.

    Parameters
    ----------
    recipe : what to train; all that it leaves open is decided here and kept as `Run.plan`.
    out : a new or empty folder; by default runs/<data>-<method>-...
    resume : continue the run in `out`, bit for bit on the CPU; a finished one is returned as it is.
    network : a torch module of your own, from images to feature vectors, in place of the recipe's; a copy is trained.
    progress : show progress on stderr.
    display : replaces what shows progress (`osp.engine.progress`).

    Returns
    -------
    Run : the folder (`path`), the numbers (`result`), the trained `model` and the `plan`.

    Raises
    ------
    UserError : something that you can correct, before any work where possible: an unknown name, data that is missing or
        has too few images, a folder in use, a full disk, a loss that is no longer a number.
    osp.engine.signals.Interrupted : Ctrl-C or SIGTERM; the state was saved, and `resume=True` goes on from it.

    >>> import osp, tempfile
    >>> recipe = osp.Recipe(data="digits", method="supervised", scale="demo", steps=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = osp.train(recipe, f"{folder}/first", progress=False)
    ...     again = osp.train(recipe, f"{folder}/first", resume=True, progress=False)  # finished: nothing is trained
    >>> run.result["steps"], again.result == run.result
    (2, True)
    """
    with shown(progress and display is None and started_rank() == 0) as own:
        run = engine.train(recipe, out, resume=resume, network=network, display=display or own)
    if run.data is not None:
        _draw(run)
    return run


def _draw(run: Run) -> None:
    """The picture comes last: whatever goes wrong in drawing, the result is there."""
    import warnings

    from osp.report.picture import draw_result  # matplotlib: only once there is something to draw

    try:
        draw_result(run)
    except Exception as error:
        warnings.warn(f"The picture of the result could not be drawn: {type(error).__name__}: {error}", stacklevel=3)
