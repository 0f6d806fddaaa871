"""Histograms of OOD scores with the threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

STYLES: dict[str, dict[str, Any]] = {
    "ID": {"color": "#2a6f97", "histtype": "stepfilled", "alpha": 0.55},
    "OOD": {"color": "#d1603d", "histtype": "step", "linewidth": 1.8, "hatch": "////"},
    "unlabelled": {"color": "#666666", "histtype": "stepfilled", "alpha": 0.5},
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
    """One histogram per kind of image (`ID`, `OOD`, `unlabelled`), each as a share of its own kind; `names` has other
    words for the kinds."""
    shown = {kind: values[np.isfinite(values)] for kind, values in scores.items() if len(values)}
    together = np.concatenate([*shown.values(), [threshold]])
    low, high = np.quantile(together, [0.002, 0.998])
    bins = np.linspace(low, max(high, low + 1e-6), 41)
    for kind, values in shown.items():
        weights = np.full(len(values), 100 / len(values))
        foreign = 100 * (values > threshold).mean()
        label = f"{(names or {}).get(kind, kind)}: {len(values):,} images, {foreign:.0f} % above"
        axes.hist(np.clip(values, bins[0], bins[-1]), bins=bins.tolist(), weights=weights, label=label, **STYLES[kind])
    axes.axvline(threshold, color="black", linestyle="--", linewidth=1.2, label=f"threshold {threshold:.3g}")
    named = f"OOD score {score!r}" if score else "OOD score"
    axes.set(xlabel=f"{named} (larger = more foreign)", ylabel="% of the images", title=title)
    axes.title.set_fontsize(10)
    axes.set_ylim(top=axes.get_ylim()[1] * (1 + 0.13 * (len(shown) + 1)))  # the legend above the bars, not over them
    axes.legend(fontsize=8, frameon=False, loc="upper left")
