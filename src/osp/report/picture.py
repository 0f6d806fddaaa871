"""One picture of a finished run: how it learned, what it calls unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from osp.engine.data import Data
from osp.errors import printable
from osp.report.charts import draw_scores
from osp.report.curves import draw_curves
from osp.report.figure import own_style, save_png
from osp.runs.run import Run

ID_COLOR, OOD_COLOR, UNKNOWN_COLOR = "#2a6f97", "#d1603d", "#888888"
COLUMNS, ROWS = 12, 2
LONGEST_NAMES = 110
"""Characters of class names in the headline; the rest are counted."""


def draw_result(run: Run) -> None:
    """Write `result.png` of a run that was just trained: validation accuracy, scores of the pool, its most familiar
    images and those it least knows."""
    assert run.predictions is not None
    scores = run.predictions.pool.scores[run.predictions.score]
    with own_style():
        save_png(draw(run.data, scores, run.result, run.metrics), run.folder.picture)


def draw(data: Data, scores: np.ndarray, result: dict[str, Any], metrics: list[dict[str, Any]]) -> Figure:
    """The figure of `draw_result`."""
    figure = Figure(figsize=(10, 6.6), layout="constrained", dpi=110)
    parts: Any = figure.subfigures(3, 1, height_ratios=[2.4, 1, 1])
    top, familiar, unknown = parts
    curve, histogram = top.subplots(1, 2)
    learning = f"Learning ({len(data.split.val):,} validation images)"
    draw_curves(curve, metrics, {"val_accuracy": "validation accuracy"}, learning, "%")
    auroc = "" if result["pool_auroc"] is None else f" (AUROC {result['pool_auroc']:.1f})"
    kinds = {"unlabeled": scores} if data.truth is None else {"ID": scores[~data.truth], "OOD": scores[data.truth]}
    if len(scores):
        draw_scores(histogram, kinds, result["threshold"], f"Unlabeled images{auroc}")
    else:
        histogram.axis("off")
    order = np.argsort(scores, kind="stable")
    count = min(COLUMNS * ROWS, max(1, len(order) // 2))
    if len(order):
        _draw_images(familiar, data, order[:count], "Unlabeled images that look most familiar")
        known = " (red frame: truly OOD)" if data.truth is not None and data.truth.any() else ""
        _draw_images(unknown, data, order[::-1][:count], f"... and most unknown{known}")
    sizes = len(data.split.test), len(data.split.test_ood)
    top.suptitle(f"{headline(result, *sizes)}\n{named_classes(data.class_names)}", fontsize=10)
    return figure


def headline(result: dict[str, Any], tested: int, tested_ood: int) -> str:
    """What was run and what came out, with the numbers of test images behind each figure."""
    parts = [f"{printable(result['method'])} on {printable(result['dataset'])}"]
    parts.append(f"{result['labels_per_class']} labels per class")
    if result["ood_ratio"] is not None:
        parts.append(f"{result['ood_ratio']:.0%} of the pool is OOD")
    if result["accuracy"] is not None:
        parts.append(f"test accuracy {result['accuracy']:.1f} % ({tested:,} images)")
    if result["auroc"] is not None:
        parts.append(f"AUROC {result['auroc']:.1f} (against {tested_ood:,} OOD images)")
    return " · ".join(parts)


def named_classes(names: tuple[str, ...]) -> str:
    """`3 classes: cat, dog, owl`; of many classes the first, and how many more.

    >>> named_classes(("cat", "dog"))
    '2 classes: cat, dog'
    >>> named_classes(tuple(f"species {n}" for n in range(100)))[-32:]
    'species 8, species 9 and 90 more'
    """
    shown: list[str] = []
    for name in map(printable, names):
        if shown and len(", ".join([*shown, name])) > LONGEST_NAMES:
            break
        shown.append(name if len(name) <= LONGEST_NAMES else f"{name[: LONGEST_NAMES - 1]}…")
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return f"{len(names)} classes: {', '.join(shown)}{more}"


def _draw_images(figure: Any, data: Data, rows: np.ndarray, title: str) -> None:
    images = data.train.take(data.split.unlabeled[rows]).numpy().transpose(0, 2, 3, 1)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    for axes in figure.subplots(ROWS, COLUMNS).flat:
        axes.axis("off")
    for axes, image, row in zip(figure.axes, images, rows, strict=False):
        axes.axis("on")
        axes.set(xticks=[], yticks=[])
        axes.imshow(image if image.shape[2] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255)
        color = UNKNOWN_COLOR
        if data.truth is not None:
            color = OOD_COLOR if data.truth[row] else ID_COLOR
        for spine in axes.spines.values():
            spine.set(color=color, linewidth=2, visible=True)
