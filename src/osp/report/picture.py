"""One picture of a finished run: how it learned, what it calls foreign."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from osp.engine.data import Data
from osp.files import write_bytes
from osp.runs.folder import RunFolder

matplotlib.use("Agg")
ID_COLOUR, OOD_COLOUR, UNKNOWN_COLOUR = "#2a6f97", "#d1603d", "#888888"
COLUMNS, ROWS = 12, 2


def draw_result(
    folder: RunFolder, data: Data, scores: np.ndarray, result: dict[str, Any], metrics: list[dict[str, Any]]
) -> None:
    """Write `result.png`: validation accuracy, scores of the pool, its most familiar and most foreign images."""
    figure = Figure(figsize=(10, 6.4), layout="constrained", dpi=110)
    parts: Any = figure.subfigures(3, 1, height_ratios=[2.2, 1, 1])
    top, familiar, foreign = parts
    curve, histogram = top.subplots(1, 2)
    _draw_curve(curve, metrics)
    _draw_scores(histogram, scores, data.truth, result["pool_auroc"], result["threshold"])
    order = np.argsort(scores, kind="stable")
    count = min(COLUMNS * ROWS, max(1, len(order) // 2))
    if len(order):
        _draw_images(familiar, data, order[:count], "Unlabelled images that look most familiar")
        known = " (red frame: truly OOD)" if data.truth is not None and data.truth.any() else ""
        _draw_images(foreign, data, order[::-1][:count], f"... and most foreign{known}")
    top.suptitle(_headline(result), fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_bytes(folder.picture, buffer.getvalue())


def _headline(result: dict[str, Any]) -> str:
    parts = [f"{result['method']} on {result['dataset']}"]
    parts.append(f"{result['labels_per_class']} labels a class")
    if result["ood_ratio"] is not None:
        parts.append(f"{result['ood_ratio']:.0%} of the pool is OOD")
    if result["accuracy"] is not None:
        parts.append(f"test accuracy {result['accuracy']:.1f} %")
    if result["auroc"] is not None:
        parts.append(f"AUROC {result['auroc']:.1f}")
    return " · ".join(parts)


def _draw_curve(axes: Axes, metrics: list[dict[str, Any]]) -> None:
    evaluations = [line for line in metrics if "val_accuracy" in line]
    axes.plot([e["step"] for e in evaluations], [e["val_accuracy"] for e in evaluations], color=ID_COLOUR, marker=".")
    axes.set(xlabel="step", ylabel="validation accuracy (%)", title="Learning")
    axes.grid(alpha=0.3)


def _draw_scores(
    axes: Axes, scores: np.ndarray, truth: np.ndarray | None, auroc: float | None, threshold: float
) -> None:
    if len(scores):
        bins = np.linspace(scores.min(), max(scores.max(), scores.min() + 1e-6), 41).tolist()
        if truth is None:
            axes.hist(scores, bins=bins, alpha=0.65, color=UNKNOWN_COLOUR)
        else:
            for side, colour, name in ((~truth, ID_COLOUR, "ID"), (truth, OOD_COLOUR, "OOD")):
                if side.any():
                    axes.hist(scores[side], bins=bins, alpha=0.65, color=colour, label=name)
        foreign = f"threshold: {(scores > threshold).sum():,} of {len(scores):,} are called foreign"
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1, label=foreign)
        axes.legend(fontsize=8)
        axes.set_yscale("log")
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
        colour = UNKNOWN_COLOUR
        if data.truth is not None:
            colour = OOD_COLOUR if data.truth[row] else ID_COLOUR
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=2)
