"""Charts of one kind of number: histograms of OOD scores, confusion matrices, lines over a setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from osp.report.figure import line_style

# Histograms of OOD scores, with the threshold

STYLES: dict[str, dict[str, Any]] = {
    "ID": {"color": "#2a6f97", "histtype": "stepfilled", "alpha": 0.55},
    "OOD": {"color": "#d1603d", "histtype": "step", "linewidth": 1.8, "hatch": "////"},
    "unlabeled": {"color": "#666666", "histtype": "stepfilled", "alpha": 0.5},
}
"""Filled against hatched: they differ in grey, too."""


def draw_scores(
    axes: Axes,
    scores: Mapping[str, np.ndarray],
    threshold: float,
    title: str,
    score: str = "",
    names: Mapping[str, str] | None = None,
) -> None:
    """One histogram per kind of image (`ID`, `OOD`, `unlabeled`), each as a share of its own kind; `names` has other
    words for the kinds."""
    shown = {kind: finite for kind, values in scores.items() if len(finite := values[np.isfinite(values)])}
    together = np.concatenate([*shown.values(), [threshold]])
    low, high = np.quantile(together, [0.002, 0.998])
    bins = np.linspace(low, max(high, low + 1e-6), 41)
    for kind, values in shown.items():
        weights = np.full(len(values), 100 / len(values))
        above = 100 * (values > threshold).mean()
        label = f"{(names or {}).get(kind, kind)}: {len(values):,} images, {above:.0f} % above"
        axes.hist(np.clip(values, bins[0], bins[-1]), bins=bins.tolist(), weights=weights, label=label, **STYLES[kind])
    axes.axvline(threshold, color="black", linestyle="--", linewidth=1.2, label=f"threshold {threshold:.3g}")
    named = f"OOD score {score!r}" if score else "OOD score"
    axes.set(xlabel=f"{named} (larger = more OOD)", ylabel="% of the images", title=title)
    axes.title.set_fontsize(10)
    axes.set_ylim(top=axes.get_ylim()[1] * (1 + 0.13 * (len(shown) + 1)))  # the legend above the bars, not over them
    axes.legend(fontsize=8, frameon=False, loc="upper left")


# The confusion matrix, and which pairs of classes are worst

MOST_NAMED = 25
"""Classes whose names fit beside a matrix."""


@dataclass(frozen=True)
class Pair:
    """Images of one class that were given another."""

    truth: int
    predicted: int
    count: int
    share: float
    """Percent of the images of that class."""


def worst_pairs(matrix: np.ndarray, most: int = 8) -> list[Pair]:
    """The largest entries off the diagonal, by their share of the row.

    >>> worst_pairs(np.array([[3, 1], [2, 2]]))[0]
    Pair(truth=1, predicted=0, count=2, share=50.0)
    """
    totals = matrix.sum(axis=1)
    pairs = [
        Pair(int(row), int(column), int(matrix[row, column]), float(100 * matrix[row, column] / totals[row]))
        for row, column in zip(*np.nonzero(matrix), strict=True)
        if row != column
    ]
    return sorted(pairs, key=lambda pair: (-pair.share, -pair.count, pair.truth, pair.predicted))[:most]


def draw_confusion(axes: Axes, matrix: np.ndarray, names: tuple[str, ...]) -> None:
    """Rows are classes, columns what was predicted, in percent of the row; numbers where they fit."""
    shares = 100 * matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=100)
    axes.set(xlabel="predicted", ylabel="class")
    if len(names) > MOST_NAMED:
        return
    short = [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
    axes.set_xticks(range(len(names)), short, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), short, fontsize=8)
    if len(names) <= 12:
        for row, column in np.ndindex(shares.shape):
            if matrix[row, column]:
                ink = "white" if shares[row, column] > 55 else "black"
                axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=8, color=ink)


# Lines over a setting or over training: mean and deviation over seeds, one line per method


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
