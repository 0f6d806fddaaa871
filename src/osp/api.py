"""`osp.train` as users and the command call it: the engine's run, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from osp.engine import train as engine
from osp.engine.progress import Display
from osp.recipe import Recipe


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    network: nn.Module | None = None,
    display: Display | None = None,
    loading: Any = None,
) -> engine.Run:
    """Train what the recipe describes, in the folder `out` (by default runs/<data>-<method>-...).

    `resume=True` continues the run in that folder; a finished one is returned as it is. `network` replaces the
    recipe's network by a torch module of your own that turns images into feature vectors.
    """
    return engine.train(
        recipe, out, resume=resume, network=network, display=display, loading=loading, draw=_draw_result
    )


def _draw_result(*run: Any) -> None:
    from osp.report.picture import draw_result  # matplotlib: only once there is something to draw

    draw_result(*run)
