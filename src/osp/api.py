"""`osp.train` as users and the command call it: the engine's run, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from osp.distributed import started_rank
from osp.engine import train as engine
from osp.engine.data import Data
from osp.engine.progress import Display, shown
from osp.recipe import Recipe


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    network: nn.Module | None = None,
    progress: bool = True,
    display: Display | None = None,
    loading: Any = None,
) -> engine.Run:
    """Train what the recipe describes, in the folder `out` (by default runs/<data>-<method>-...).

    `resume=True` continues the run in that folder; a finished one is returned as it is. `network` replaces the
    recipe's network by a torch module of your own that turns images into feature vectors. Progress is shown on
    stderr unless `progress=False`; `display` and `loading` replace what shows it (`osp.engine.progress`).
    """
    with shown(progress and display is None and started_rank() == 0) as own:
        run = engine.train(
            recipe, out, resume=resume, network=network, display=display or own, loading=loading or own.loading
        )
    if run.data is not None:
        _draw(run, run.data)
    return run


def _draw(run: engine.Run, data: Data) -> None:
    """The picture comes last: whatever goes wrong in drawing, the result is there."""
    import warnings

    from osp.evaluate.predictions import Predictions
    from osp.report.picture import draw_result  # matplotlib: only once there is something to draw
    from osp.runs.folder import RunFolder

    folder = RunFolder(run.path)
    try:
        predictions = Predictions.load(folder.predictions)
        scores = predictions.pool.scores[predictions.score]
        draw_result(folder, data, scores, run.result, folder.read_metrics())
    except Exception as error:
        warnings.warn(f"The picture of the result could not be drawn: {type(error).__name__}: {error}", stacklevel=3)
