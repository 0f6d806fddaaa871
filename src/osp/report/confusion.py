"""The confusion matrix, and which pairs of classes are worst."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

MOST_NAMED = 25
"""Classes whose names fit beside a matrix."""


@dataclass(frozen=True)
class Pair:
    """Images of one class that are taken for another."""

    truth: int
    taken_for: int
    count: int
    share: float
    """Percent of the images of that class."""


def worst_pairs(matrix: np.ndarray, most: int = 8) -> list[Pair]:
    """The largest entries off the diagonal, by their share of the row.

    >>> worst_pairs(np.array([[3, 1], [2, 2]]))[0]
    Pair(truth=1, taken_for=0, count=2, share=50.0)
    """
    totals = matrix.sum(axis=1)
    pairs = [
        Pair(int(row), int(column), int(matrix[row, column]), float(100 * matrix[row, column] / totals[row]))
        for row, column in zip(*np.nonzero(matrix), strict=True)
        if row != column
    ]
    return sorted(pairs, key=lambda pair: (-pair.share, -pair.count, pair.truth, pair.taken_for))[:most]


def draw_confusion(axes: Axes, matrix: np.ndarray, names: tuple[str, ...]) -> None:
    """Rows are classes, columns what they were taken for, in percent of the row; numbers where they fit."""
    shares = 100 * matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=100)
    axes.set(xlabel="taken for", ylabel="class")
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
