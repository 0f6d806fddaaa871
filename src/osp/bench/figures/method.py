"""Figures 1a, 2 and 3 of the paper: the idea, the architecture, the decomposition. They need no run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from osp.runs.run import Run

Point = tuple[float, float]

ID, OOD, NEUTRAL, DARK = "#d6e8f2", "#f6ddd2", "#eeeeee", "#333333"
ID_LINE, OOD_LINE, PRUNED_LINE = "#2a6f97", "#d1603d", "#2f9e44"

BOXES: list[tuple[Point, Point, str, str]] = [
    ((0.1, 5.2), (2.1, 0.9), "labeled images\nweak view", ID),
    ((0.1, 3.5), (2.1, 0.9), "kept pool images\nweak and strong view", ID),
    ((0.1, 1.3), (2.1, 0.9), "whole pool\nfour rotations", OOD),
    ((3.0, 2.9), (1.5, 2.0), "encoder G\n\nz = G(x)", NEUTRAL),
    ((5.5, 5.5), (2.5, 0.8), "classifier F\nL_ce, L_u", NEUTRAL),
    ((5.5, 4.2), (2.5, 0.8), "matching head M\nS(x), L_ood", NEUTRAL),
    ((5.5, 1.0), (2.5, 0.8), "rotation head H\nL_rot", NEUTRAL),
    ((9.0, 4.2), (2.1, 0.8), "partition of the pool\n(Otsu), each refresh", NEUTRAL),
    ((11.7, 4.2), (2.2, 0.8), "set aside, doubtful:\nbank B(1) ... B(K)", OOD),
    ((5.5, 2.6), (2.5, 0.8), "anchors: z with\np[c] > 0.8  (Eq. 2-4)", ID),
    ((9.0, 2.6), (2.1, 0.8), "aliasing matching\nz of c with o of B(c)", NEUTRAL),
    ((9.0, 1.0), (2.1, 0.9), "prune (Eq. 8)\nz_r = z - α (z·o/‖o‖²) o", NEUTRAL),
    ((11.7, 1.0), (2.2, 0.9), "F(z_r) like F(z):\nL_odc (Eq. 10)", NEUTRAL),
]
"""Of the architecture: lower left corner, width and height, text, color."""
ARROWS: list[tuple[Point, Point]] = [
    *(((2.25, y), (2.97, 3.9 + (y - 3.9) * 0.25)) for y in (5.65, 3.95, 1.75)),
    *(((4.55, 3.9 + (y - 3.9) * 0.3), (5.45, y)) for y in (5.9, 4.6, 1.4)),
    ((8.05, 4.6), (8.95, 4.6)),
    ((11.15, 4.6), (11.65, 4.6)),
    ((4.55, 3.4), (5.45, 3.0)),
    ((8.05, 3.0), (8.95, 3.0)),
    ((10.05, 2.55), (10.05, 1.95)),
    ((11.15, 1.45), (11.65, 1.45)),
]
STAGES = "Pre-training: L_ce + L_rot + L_ood.  Fine-tuning: all terms.  Inference: G and F alone."


def figures(runs: list[Run]) -> dict[str, Figure]:
    """The three diagrams; runs play no part."""
    return {"idea": idea(), "architecture": architecture(), "decomposition": decomposition()}


def canvas(size: Point, x: Point, y: Point, aspect: str = "equal") -> tuple[Figure, Axes]:
    """A figure without axes."""
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.set(xlim=x, ylim=y, aspect=aspect)
    axes.axis("off")
    return figure, axes


def arrow(axes: Axes, start: Point, end: Point, **style: object) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": DARK, "lw": 1, **style})


def idea() -> Figure:
    """Figure 1a: an ID and an OOD feature overlap in meaning; what they share is pruned out of the ID feature."""
    figure, axes = canvas((9.4, 3.2), (0, 13), (0, 4.3))
    overlaps = ({"fc": "none", "ec": DARK, "hatch": "////", "lw": 0}, {"fc": "white", "ec": "none", "alpha": 0.85})
    for x, overlap in zip((2.1, 8.1), overlaps, strict=True):
        axes.add_patch(Circle((x, 2.1), 1.45, fc=ID, ec="none", alpha=0.9))
        axes.add_patch(Circle((x + 2.0, 2.1), 1.45, fc=OOD, ec=OOD_LINE, lw=1.8, ls="--", alpha=0.9))
        shared = axes.add_patch(Circle((x + 2.0, 2.1), 1.45, **overlap))
        shared.set_clip_path(Circle((x, 2.1), 1.45, transform=axes.transData))
        axes.add_patch(Circle((x, 2.1), 1.45, fc="none", ec=ID_LINE, lw=1.8))
        axes.text(x - 0.55, 2.1, "ID\nsemantics", ha="center", va="center", fontsize=9)
        axes.text(x + 2.6, 2.1, "OOD\nsemantics", ha="center", va="center", fontsize=9)
    axes.text(3.1, 3.95, "a feature z and its OOD partner o share semantics", ha="center", fontsize=9)
    axes.text(9.1, 3.95, "pruned: classified without what they share", ha="center", fontsize=9)
    arrow(axes, (5.75, 2.1), (6.5, 2.1))
    axes.text(6.12, 2.35, "prune", ha="center", fontsize=9)
    return figure


def architecture() -> Figure:
    """Figure 2: what an image goes through in fine-tuning, and which loss each part gets."""
    figure, axes = canvas((11, 5.4), (-0.5, 14), (0, 6.95), "auto")
    for (x, y), (width, height), text, color in BOXES:
        style = "round,pad=0.02,rounding_size=0.08"
        axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=color, ec=DARK, lw=1))
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5, linespacing=1.3)
    for start, end in ARROWS:
        arrow(axes, start, end)
    arrow(axes, (12.8, 4.15), (11.15, 3.1), connectionstyle="arc3,rad=-0.2")
    axes.plot([10.05, 10.05, -0.35, -0.35, 0.0], [5.05, 6.6, 6.6, 3.95, 3.95], color=DARK, lw=1, ls=":")
    axes.text(5.2, 6.62, "kept images", fontsize=7.5, va="bottom")
    axes.text(0.1, 0.25, STAGES, fontsize=8.5)
    return figure


def decomposition() -> Figure:
    """Figure 3: a feature, its part along an OOD feature, and what pruning leaves, computed by `osp.parts.prune`."""
    import torch

    from osp.parts import prune

    figure, axes = canvas((6.2, 4.4), (-0.8, 4.8), (-0.6, 2.9))
    feature, ood, alpha = np.array([3.2, 2.4]), np.array([4.4, 0.0]), 0.8
    pruned, across = (prune(torch.tensor(feature)[None], torch.tensor(ood)[None], a)[0].tolist() for a in (alpha, 1.0))
    arrows: dict[str, tuple[Sequence[float], str, Point]] = {
        "o, OOD feature": (ood.tolist(), OOD_LINE, (4.1, -0.28)),
        "z, ID feature": (feature.tolist(), ID_LINE, (3.25, 2.45)),
        f"$z_r = z - \\alpha z_b$, α = {alpha}": (pruned, PRUNED_LINE, (0.75, 2.5)),
    }
    for text, (vector, color, place) in arrows.items():
        arrow(axes, (0, 0), (vector[0], vector[1]), color=color, lw=2.2)
        axes.text(*place, text, color=color, fontsize=10, parse_math=True)
    arrow(axes, (0, -0.08), (feature[0], -0.08), arrowstyle="<->", color="grey")
    axes.text(feature[0] / 2, -0.34, "$z_b = (z\\cdot o/\\|o\\|^2)\\,o$", ha="center", color="grey", parse_math=True)
    axes.plot([feature[0], feature[0]], [0, feature[1]], ls=":", color="grey")
    axes.plot([pruned[0], feature[0]], [feature[1]] * 2, ls=":", color="grey")
    arrow(axes, (0, 0), (across[0], across[1]), color="grey", ls="--")
    axes.text(-0.1, 1.1, "$z_a \\perp o$", color="grey", ha="right", parse_math=True)
    return figure
