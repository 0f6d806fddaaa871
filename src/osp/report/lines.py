"""Lines over a setting or over training: mean and deviation over seeds, one line per method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from osp.report.figure import line_style


@dataclass(frozen=True)
class Line:
    """One curve; `spread` is the deviation over seeds, 0 where there is one seed."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...]
    seeds: int
    """The fewest at any point."""


def over_seeds(name: str, points: Iterable[tuple[float, float]]) -> Line:
    """Mean and sample deviation of the values at each x.

    >>> over_seeds("osp", [(1, 4.0), (1, 6.0), (0, 3.0)])
    Line(name='osp', x=(0, 1), y=(3.0, 5.0), spread=(0.0, 1.4142135623730951), seeds=1)
    """
    values: dict[float, list[float]] = defaultdict(list)
    for x, y in points:
        values[x].append(y)
    order = sorted(values)
    return Line(
        name,
        tuple(order),
        tuple(float(np.mean(values[x])) for x in order),
        tuple(float(np.std(values[x], ddof=1)) if len(values[x]) > 1 else 0.0 for x in order),
        min((len(each) for each in values.values()), default=0),
    )


def draw_lines(axes: Axes, lines: Iterable[Line], x: str, y: str, title: str = "", first: int = 0) -> None:
    """Curves with bars of one deviation; a single point is drawn as one. Few points have bars, many a band."""
    for number, line in enumerate(lines, start=first):
        style = line_style(number)
        many = len(line.x) > 15
        every = max(1, len(line.x) // 12)
        axes.plot(line.x, line.y, label=line.name, markersize=5, linewidth=1.5, markevery=every, **style)
        if any(line.spread):
            low, high = np.subtract(line.y, line.spread), np.add(line.y, line.spread)
            if many:
                axes.fill_between(line.x, low, high, color=style["color"], alpha=0.12, linewidth=0)
            else:
                axes.errorbar(line.x, line.y, line.spread, fmt="none", ecolor=style["color"], capsize=3, linewidth=1)
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.title.set_fontsize(10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, handlelength=3.2)
    else:
        axes.text(0.5, 0.5, "no run yet", transform=axes.transAxes, ha="center", color="#666666")
