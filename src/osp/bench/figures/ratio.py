"""Figure 4a: test accuracy over the share of OOD images in the pool."""

from __future__ import annotations

from matplotlib.figure import Figure

from osp.bench.figures._lines import Panel, line_figure, number
from osp.runs.run import Run

TITLE = "Test accuracy over the share of OOD images in the pool (the paper's Figure 4a)."


def figures(runs: list[Run]) -> dict[str, Figure]:
    accuracy = Panel(
        lambda run: number(run, "accuracy", run.number("ood_ratio")), "OOD share of the pool", "test accuracy (%)"
    )
    return line_figure(runs, [accuracy])
