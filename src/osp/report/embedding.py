"""Maps of features (the paper's Figure 1b, 1c): ID images by class, OOD images black."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes

from osp.evaluate.predictions import sample_rows
from osp.report.figure import COLORS, MARKERS
from osp.runs.run import Run

MOST_ID, MOST_OOD = 600, 400
"""Points on a map: more take longer, and hide one another."""
MOST_NAMED = 20
"""Classes in a legend."""


@dataclass(frozen=True)
class FeatureMap:
    """Points of a map. Group and row say which image of the predictions each is, where these are there."""

    places: np.ndarray
    """N×2."""
    classes: np.ndarray
    """int64: the class of an ID image, -1 for an OOD one."""
    groups: tuple[str, ...] = ()
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    unknown: str = "OOD test images"
    """What the points without a class are."""

    def __len__(self) -> int:
        return len(self.places)


def feature_map(run: Run, most_id: int = MOST_ID, most_ood: int = MOST_OOD) -> FeatureMap | None:
    """t-SNE (van der Maaten and Hinton 2008) of features of test images; None without at least five.

    Where there are no OOD test images (a pile of unsorted photos), the black points are images of the pool that the
    model calls unknown.
    """
    test = run.group("test")
    if run.predictions is None or test is None or test.targets is None:
        return None
    rows = sample_rows(len(test), most_id)
    features, classes = [test.features[rows]], [test.targets[rows]]
    groups, numbers, unknown = ["test"] * len(rows), [rows], "OOD test images"
    ood = run.group("test_ood")
    if ood is not None:
        rows = sample_rows(len(ood), most_ood)
        features.append(ood.features[rows])
        groups += ["test_ood"] * len(rows)
    else:
        pool = run.predictions.pool
        called = np.flatnonzero(pool.scores[run.predictions.score][pool.sample] > run.predictions.threshold)
        chosen = called[sample_rows(len(called), most_ood)]
        rows, unknown = pool.sample[chosen], "unlabeled images that it calls unknown"
        features.append(pool.features[chosen])
        groups += ["pool"] * len(rows)
    numbers.append(rows)
    classes.append(np.full(len(rows), -1))
    everything = np.concatenate(features)
    if len(everything) < 5:
        return None
    return FeatureMap(embed(everything), np.concatenate(classes), tuple(groups), np.concatenate(numbers), unknown)


def embed(features: np.ndarray) -> np.ndarray:
    """N×2 in [0, 1], the same for the same features. Features are reduced to 50 principal components first."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    features = features.astype(np.float64)
    size = min(50, *features.shape)
    perplexity = min(30.0, (len(features) - 1) / 3)
    with threadpool_limits(1):  # so few points that several threads would mostly spin, waiting for one another
        reduced = PCA(size, svd_solver="full").fit_transform(features) if np.ptp(features) > 0 else features[:, :2]
        found = TSNE(perplexity=perplexity, init="random", random_state=0).fit_transform(reduced)
    low, high = found.min(axis=0), found.max(axis=0)
    placed: np.ndarray = (found - low) / np.maximum(high - low, 1e-12)
    return placed


def draw_map(axes: Axes, found: FeatureMap, names: tuple[str, ...], title: str = "", legend: bool = True) -> None:
    """ID points by class, each with its color and marker, over black OOD points."""
    ood = found.classes < 0
    if ood.any():
        x, y = found.places[ood].T
        axes.scatter(x, y, s=7, c="black", marker=".", linewidths=0, label="OOD", zorder=1)
    for number, name in enumerate(names):
        here = found.classes == number
        if here.any():
            color, marker = COLORS[number % len(COLORS)], MARKERS[(number + number // len(COLORS)) % len(MARKERS)]
            x, y = found.places[here].T
            axes.scatter(x, y, s=12, c=color, marker=marker, linewidths=0, alpha=0.85, label=name)
    axes.set(xticks=[], yticks=[], title=title)
    axes.title.set_fontsize(10)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#bbbbbb")
    if legend and len(names) <= MOST_NAMED:
        axes.legend(fontsize=7, markerscale=1.6, frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left")
