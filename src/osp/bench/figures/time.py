"""What time buys: runs of several lengths, each tested once at its end, against seconds and images seen.

Runs of one length and method are one point: means over seeds on both axes.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from matplotlib.figure import Figure

from osp.bench.figures._lines import by_data, by_method, headed
from osp.report.charts import Line, draw_lines
from osp.report.figure import plain_ticks
from osp.runs.run import Run

AXES = {"seconds": "seconds of training and test", "images_seen": "images seen"}


def figures(runs: list[Run]) -> dict[str, Figure]:
    sets = by_data(runs) or {"": []}
    figure = Figure(figsize=(10.4, 3.9 * len(sets)), layout="constrained", dpi=120)
    rows = figure.subplots(len(sets), 2, squeeze=False)
    for axes_row, (data, members) in zip(rows, sets.items(), strict=True):
        for axes, (key, label) in zip(axes_row, AXES.items(), strict=True):
            lines = [line for name, own in by_method(members).items() if (line := by_length(name, own, key)).x]
            draw_lines(axes, lines, label, "test accuracy (%)", headed(data, lines))
            if lines:
                axes.set_xscale("log")
                plain_ticks(axes.xaxis)
    return {"": figure}


def by_length(name: str, runs: list[Run], key: str) -> Line:
    """A point per number of steps."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        cost, accuracy = run.number(key), run.number("accuracy")
        if cost and accuracy is not None:
            found[run.plan.steps].append((cost, accuracy))
    points = [np.array(found[steps]) for steps in sorted(found)]
    return Line(
        name,
        tuple(float(each[:, 0].mean()) for each in points),
        tuple(float(each[:, 1].mean()) for each in points),
        tuple(float(each[:, 1].std(ddof=1)) if len(each) > 1 else 0.0 for each in points),
        min((len(each) for each in points), default=0),
    )
