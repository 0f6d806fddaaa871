"""How a run learned: what metrics.jsonl says over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from osp.report.figure import line_style, plain_ticks

PANELS: dict[str, tuple[str, dict[str, str]]] = {
    "Accuracy and AUROC": ("%", {"val_accuracy": "validation accuracy", "pool_auroc": "AUROC in the pool"}),
    "What it keeps of the pool": ("%", {"purity": "purity: ID among the kept", "recall": "recall: ID that is kept"}),
    "Features": ("degrees", {"angle": "angle between ID and OOD"}),
    "Bank": ("OOD features per class", {"bank_fill": "mean", "bank_fill_least": "fewest"}),
}


def series(metrics: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that have this number."""
    found = [(line["step"], line[key]) for line in metrics if is_number(line.get(key))]
    return [step for step, _ in found], [value for _, value in found]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def losses(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """`loss` and its terms: in a line they follow it, and add up to it; what comes after is not part of the loss.

    >>> losses([{"step": 1, "kind": "train", "loss": 3.0, "ce": 2.0, "extra": 1.0, "mask_rate": 0.5}])
    ['loss', 'ce', 'extra']
    """
    seen: dict[str, None] = {}
    for line in metrics:
        if line.get("kind") == "train" and is_number(line.get("loss")):
            total, names = 0.0, []
            keys = list(line)
            for key in keys[keys.index("loss") + 1 :]:
                if not is_number(line[key]):
                    break
                names.append(key)
                total += line[key]
                if abs(total - line["loss"]) <= 1e-3 * max(abs(line["loss"]), 1e-3):
                    seen |= dict.fromkeys(["loss", *names])
                    break
    return list(seen) or ["loss"]


def shares(metrics: Sequence[Mapping[str, Any]], but: Sequence[str]) -> list[str]:
    """What else the method notes in training, as far as it lies between 0 and 1: rates of masks, shares kept."""
    most: dict[str, float] = {}
    for line in metrics:
        if line.get("kind") == "train":
            for key, value in line.items():
                if is_number(value) and key not in but:
                    most[key] = max(most.get(key, 0.0), value if value >= 0 else 2.0)
    return [key for key, value in most.items() if value <= 1]


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Losses, accuracy and AUROC, purity, angle, bank fill: a figure each, those of which the run says anything."""
    terms = losses(metrics)
    noted = shares(metrics, ["step", "lr", "images_seen", "bank_fill", "bank_fill_least", *terms])
    wanted: dict[str, tuple[str, dict[str, str]]] = {
        "Losses": ("loss", {name: name for name in terms[:10]}),
        **PANELS,
        "What the method notes": ("share", {name: name for name in noted[:8]}),
    }
    found = {}
    for title, (unit, keys) in wanted.items():
        kept = {key: name for key, name in keys.items() if series(metrics, key)[0]}
        if kept:
            figure = Figure(figsize=(5, 3), layout="constrained", dpi=110)
            draw_curves(figure.subplots(), metrics, kept, title, unit)
            found[title] = figure
    return found


def draw_curves(
    axes: Axes, metrics: Sequence[Mapping[str, Any]], keys: Mapping[str, str], title: str, unit: str
) -> None:
    """Numbers over the steps, by key and name; dotted where a stage begins. Losses on a logarithmic scale down to 0."""
    for number, (key, name) in enumerate(keys.items()):
        steps, values = series(metrics, key)
        every = max(1, len(steps) // 8)
        axes.plot(steps, values, label=name, markersize=4, linewidth=1.3, markevery=every, **line_style(number))
    for step in stage_changes(metrics):
        axes.axvline(step, color="#888888", linewidth=0.8, linestyle=":")
    axes.set(title=title, xlabel="step", ylabel=unit)
    axes.title.set_fontsize(10)
    if "loss" in keys:
        axes.set_yscale("symlog", linthresh=1e-2)
        plain_ticks(axes.yaxis)
        axes.set_ylim(bottom=min(0, *(min(series(metrics, key)[1]) for key in keys)))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False, ncols=2 if len(keys) > 5 else 1, handlelength=3)


def stage_changes(metrics: Sequence[Mapping[str, Any]]) -> list[int]:
    """Steps at which the first line of another stage was written."""
    stages = [(line["step"], line.get("stage")) for line in metrics]
    return [step for (_, before), (step, stage) in pairwise(stages) if stage != before]
