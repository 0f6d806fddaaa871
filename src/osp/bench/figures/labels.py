"""Figure 4b: test accuracy over the number of labels."""

from __future__ import annotations

from matplotlib.figure import Figure

from osp.bench.figures._lines import Panel, line_figure, number
from osp.runs.run import Run

TITLE = "Test accuracy over the number of labelled images per class (the paper's Figure 4b)."


def figures(runs: list[Run]) -> dict[str, Figure]:
    accuracy = Panel(
        lambda run: number(run, "accuracy", run.plan.labels_per_class),
        "labelled images per class",
        "test accuracy (%)",
    )
    return line_figure(runs, [accuracy])
