"""Figure (c) of the supplement: angle between ID and OOD features over training."""

from __future__ import annotations

from matplotlib.figure import Figure

from osp.bench.figures._lines import Panel, evaluations, line_figure
from osp.runs.run import Run

TITLE = "Mean angle between ID and OOD features over training (the supplement's Figure c); 90 degrees is orthogonal."


def figures(runs: list[Run]) -> dict[str, Figure]:
    panel = Panel(lambda run: evaluations(run, "angle"), "step", "angle between ID and OOD (degrees)")
    return line_figure(runs, [panel])
