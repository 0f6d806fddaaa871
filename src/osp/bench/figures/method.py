"""Figures 1a, 2 and 3 of the paper, drawn anew: the idea, the architecture, the decomposition. They need no run."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from osp.runs.run import Run

TITLE = "How OSP works: the idea, the architecture, the decomposition (the paper's Figures 1a, 2 and 3)."

ID, OOD, NEUTRAL, DARK = "#d6e8f2", "#f6ddd2", "#eeeeee", "#333333"


def figures(runs: list[Run]) -> dict[str, Figure]:
    """The three diagrams; runs play no part."""
    return {"idea": idea(), "architecture": architecture(), "decomposition": decomposition()}


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str = NEUTRAL) -> None:
    """A rounded box with its lower left corner at (x, y)."""
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.02,rounding_size=0.08", fc=color, ec=DARK, lw=1)
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5, linespacing=1.3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str = "", bend: float = 0.0) -> None:
    style = {"arrowstyle": "-|>", "color": DARK, "lw": 1, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    if text:
        axes.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.08, text, fontsize=7.5, ha="center")


def idea() -> Figure:
    """Figure 1a: an ID and an OOD feature overlap in meaning; what they share is pruned out of the ID feature."""
    figure = Figure(figsize=(9.4, 3.2), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.set(xlim=(0, 13), ylim=(0, 4.3), aspect="equal")
    axes.axis("off")
    for x, shared in ((2.1, True), (8.1, False)):
        axes.add_patch(Circle((x, 2.1), 1.45, fc=ID, ec="#2a6f97", lw=1.8, alpha=0.9))
        axes.add_patch(Circle((x + 2.0, 2.1), 1.45, fc=OOD, ec="#d1603d", lw=1.8, ls="--", alpha=0.9))
        if shared:
            overlap = Circle((x + 2.0, 2.1), 1.45, fc="none", ec=DARK, hatch="////", lw=0)
            axes.add_patch(overlap)
            overlap.set_clip_path(Circle((x, 2.1), 1.45, transform=axes.transData))
        axes.text(x - 0.55, 2.1, "ID\nsemantics", ha="center", va="center", fontsize=9)
        axes.text(x + 2.6, 2.1, "OOD\nsemantics", ha="center", va="center", fontsize=9)
    axes.add_patch(Circle((8.1, 2.1), 1.45, fc="none", ec="#2a6f97", lw=1.8))
    cut = Circle((8.1 + 2.0, 2.1), 1.45, fc="white", ec="none", alpha=0.85)
    axes.add_patch(cut)
    cut.set_clip_path(Circle((8.1, 2.1), 1.45, transform=axes.transData))
    axes.text(3.1, 3.95, "a feature z and its OOD partner o share semantics", ha="center", fontsize=9)
    axes.text(9.1, 3.95, "pruned: classified without what they share", ha="center", fontsize=9)
    arrow(axes, (5.75, 2.1), (6.5, 2.1))
    axes.text(6.12, 2.35, "prune", ha="center", fontsize=9)
    return figure


def architecture() -> Figure:
    """Figure 2: what an image goes through in fine-tuning, and which loss each part gets."""
    figure = Figure(figsize=(11, 5.4), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.set(xlim=(-0.5, 14), ylim=(0, 6.95))
    axes.axis("off")
    box(axes, 0.1, 5.2, 2.1, 0.9, "labelled images\nweak view", ID)
    box(axes, 0.1, 3.5, 2.1, 0.9, "kept pool images\nweak and strong view", ID)
    box(axes, 0.1, 1.3, 2.1, 0.9, "whole pool\nfour rotations", OOD)
    box(axes, 3.0, 2.9, 1.5, 2.0, "encoder G\n\nz = G(x)")
    for y in (5.65, 3.95, 1.75):
        arrow(axes, (2.25, y), (2.97, 3.9 + (y - 3.9) * 0.25))
    box(axes, 5.5, 5.5, 2.5, 0.8, "classifier F\nL_ce, L_u")
    box(axes, 5.5, 4.2, 2.5, 0.8, "matching head M\nS(x), L_ood")
    box(axes, 5.5, 1.0, 2.5, 0.8, "rotation head H\nL_rot")
    for y in (5.9, 4.6, 1.4):
        arrow(axes, (4.55, 3.9 + (y - 3.9) * 0.3), (5.45, y))
    box(axes, 9.0, 4.2, 2.1, 0.8, "partition of the pool\n(Otsu), each refresh")
    arrow(axes, (8.05, 4.6), (8.95, 4.6))
    axes.plot([10.05, 10.05, -0.35, -0.35, 0.0], [5.05, 6.6, 6.6, 3.95, 3.95], color=DARK, lw=1, ls=":")
    axes.text(5.2, 6.62, "kept images", fontsize=7.5, va="bottom")
    box(axes, 11.7, 4.2, 2.2, 0.8, "set aside, doubtful:\nbank B(1) ... B(K)", OOD)
    arrow(axes, (11.15, 4.6), (11.65, 4.6))
    box(axes, 5.5, 2.6, 2.5, 0.8, "anchors: z with\np[c] > 0.8  (Eq. 2-4)", ID)
    arrow(axes, (4.55, 3.4), (5.45, 3.0))
    box(axes, 9.0, 2.6, 2.1, 0.8, "aliasing matching\nz of c with o of B(c)")
    arrow(axes, (8.05, 3.0), (8.95, 3.0))
    arrow(axes, (12.8, 4.15), (11.15, 3.1), bend=-0.2)
    box(axes, 9.0, 1.0, 2.1, 0.9, "prune (Eq. 8)\nz_r = z - α (z·o/‖o‖²) o")
    arrow(axes, (10.05, 2.55), (10.05, 1.95))
    box(axes, 11.7, 1.0, 2.2, 0.9, "F(z_r) like F(z):\nL_odc (Eq. 10)")
    arrow(axes, (11.15, 1.45), (11.65, 1.45))
    axes.text(
        0.1,
        0.25,
        "Pre-training: L_ce + L_rot + L_ood.  Fine-tuning: all terms.  Inference: G and F alone.",
        fontsize=8.5,
    )
    return figure


def decomposition() -> Figure:
    """Figure 3: a feature, its part along an OOD feature, and what pruning leaves, computed by `osp.parts.prune`."""
    import torch

    from osp.parts import prune

    figure = Figure(figsize=(6.2, 4.4), layout="constrained", dpi=120)
    axes = figure.subplots()
    feature, ood, alpha = np.array([3.2, 2.4]), np.array([4.4, 0.0]), 0.8
    pruned = prune(torch.tensor(feature)[None], torch.tensor(ood)[None], alpha)[0].numpy()
    along = prune(torch.tensor(feature)[None], torch.tensor(ood)[None], 1.0)[0].numpy()
    arrows = {
        "o, OOD feature": (ood, "#d1603d", (4.1, -0.28)),
        "z, ID feature": (feature, "#2a6f97", (3.25, 2.45)),
        f"$z_r = z - \\alpha z_b$, α = {alpha}": (pruned, "#2f9e44", (0.75, 2.5)),
    }
    for text, (vector, color, place) in arrows.items():
        axes.annotate(
            "", xy=(vector[0], vector[1]), xytext=(0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2.2}
        )
        axes.text(*place, text, color=color, fontsize=10, parse_math=True)
    axes.annotate("", xy=(feature[0], -0.08), xytext=(0, -0.08), arrowprops={"arrowstyle": "<->", "color": "grey"})
    axes.text(feature[0] / 2, -0.34, "$z_b = (z\\cdot o/\\|o\\|^2)\\,o$", ha="center", color="grey", parse_math=True)
    axes.plot([feature[0], feature[0]], [0, feature[1]], ls=":", color="grey")
    axes.plot([pruned[0], feature[0]], [feature[1]] * 2, ls=":", color="grey")
    axes.annotate(
        "",
        xy=(along[0], along[1]),
        xytext=(0, 0),
        arrowprops={"arrowstyle": "-|>", "color": "grey", "lw": 1, "ls": "--"},
    )
    axes.text(-0.1, 1.1, "$z_a \\perp o$", color="grey", ha="right", parse_math=True)
    axes.set(xlim=(-0.8, 4.8), ylim=(-0.6, 2.9), aspect="equal")
    axes.axis("off")
    return figure
