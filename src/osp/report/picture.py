"""One picture of a finished run: how it learned, what it calls foreign."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from osp.engine.data import Data
from osp.errors import printable
from osp.report.figure import own_style, save_png
from osp.runs.folder import RunFolder

ID_COLOR, OOD_COLOR, UNKNOWN_COLOR = "#2a6f97", "#d1603d", "#888888"
COLUMNS, ROWS = 12, 2
LONGEST_NAMES = 110
"""Characters of class names in the headline; the rest are counted."""


def draw_result(
    folder: RunFolder, data: Data, scores: np.ndarray, result: dict[str, Any], metrics: list[dict[str, Any]]
) -> None:
    """Write `result.png`: validation accuracy, scores of the pool, its most familiar and most foreign images."""
    with own_style():
        save_png(draw(data, scores, result, metrics), folder.picture)


def draw(data: Data, scores: np.ndarray, result: dict[str, Any], metrics: list[dict[str, Any]]) -> Figure:
    """The figure of `draw_result`."""
    figure = Figure(figsize=(10, 6.6), layout="constrained", dpi=110)
    parts: Any = figure.subfigures(3, 1, height_ratios=[2.4, 1, 1])
    top, familiar, foreign = parts
    curve, histogram = top.subplots(1, 2)
    _draw_curve(curve, metrics, len(data.split.val))
    _draw_scores(histogram, scores, data.truth, result["pool_auroc"], result["threshold"])
    order = np.argsort(scores, kind="stable")
    count = min(COLUMNS * ROWS, max(1, len(order) // 2))
    if len(order):
        _draw_images(familiar, data, order[:count], "Unlabelled images that look most familiar")
        known = " (red frame: truly OOD)" if data.truth is not None and data.truth.any() else ""
        _draw_images(foreign, data, order[::-1][:count], f"... and most foreign{known}")
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


def _draw_curve(axes: Axes, metrics: list[dict[str, Any]], images: int) -> None:
    evaluations = [line for line in metrics if "val_accuracy" in line]
    axes.plot([e["step"] for e in evaluations], [e["val_accuracy"] for e in evaluations], color=ID_COLOR, marker=".")
    axes.set(xlabel="step", ylabel="validation accuracy (%)", title=f"Learning ({images:,} validation images)")
    axes.grid(alpha=0.3)


def _draw_scores(
    axes: Axes, scores: np.ndarray, truth: np.ndarray | None, auroc: float | None, threshold: float
) -> None:
    if len(scores):
        bins = np.linspace(scores.min(), max(scores.max(), scores.min() + 1e-6), 41).tolist()
        if truth is None:
            axes.hist(scores, bins=bins, alpha=0.65, color=UNKNOWN_COLOR)
        else:
            for side, color, name in ((~truth, ID_COLOR, "ID"), (truth, OOD_COLOR, "OOD")):
                if side.any():
                    axes.hist(scores[side], bins=bins, alpha=0.65, color=color, label=name)
        foreign = f"threshold: {(scores > threshold).sum():,} of {len(scores):,} are called foreign"
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1, label=foreign)
        axes.legend(fontsize=8)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}" if count >= 1 else ""))
        axes.yaxis.set_minor_formatter(NullFormatter())
    title = "Unlabelled images" if auroc is None else f"Unlabelled images (AUROC {auroc:.1f})"
    axes.set(xlabel="OOD score (larger = more foreign)", ylabel="images", title=title)


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
