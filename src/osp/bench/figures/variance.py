"""Figure (b) of the supplement: inter-class variance of ID features over training."""

from __future__ import annotations

from matplotlib.figure import Figure

from osp.bench.figures._lines import Panel, evaluations, line_figure
from osp.runs.run import Run

TITLE = "Inter-class variance of ID features over training (the supplement's Figure b); larger = further apart."


def figures(runs: list[Run]) -> dict[str, Figure]:
    panel = Panel(lambda run: evaluations(run, "interclass_variance"), "step", "inter-class variance")
    return line_figure(runs, [panel])
