"""Figure 5: where the networks look. Per column a test image: the first of each class, none was picked by its looks.

Rows: the image; the baseline's Grad-CAM; Grad-CAM of z·o/‖o‖ for the OOD feature o of OSP's bank paired with it, and
next to that the image of o; OSP's Grad-CAM. Needs the images and the models (`osp.models.gradcam`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from osp.bench.figures._lines import by_data, by_method
from osp.errors import UserError
from osp.report.looks import Looks, look
from osp.report.trained import TrainedView
from osp.runs.run import Run

BASELINES = ("t2t", "fixmatch", "supervised")
MOST = 8
"""Images: one each of the first classes."""


def figures(runs: list[Run]) -> dict[str, Figure]:
    """One figure per data set that has a run with a bank, of the lowest seed, and beside it one without."""
    made: dict[str, Figure] = {}
    sets = by_data(runs)
    for data, members in sets.items():
        methods = by_method(members)
        banked = [run for run in members if run.bank]
        if banked:
            run = min(banked, key=lambda each: each.plan.seed)
            others = [name for name in (*BASELINES, *methods) if name in methods and name != run.method]
            baseline = counterpart(run, methods[others[0]]) if others else None
            ending = "" if len(sets) == 1 else "".join(c if c.isalnum() else "-" for c in data)
            beside = None if baseline is None else TrainedView(baseline)
            made[ending] = draw_looks(look(TrainedView(run), beside, MOST), run, baseline)
    if not made:
        raise UserError("figure-cam: none of the runs has a bank of OOD features (bank.npz); run osp here.")
    return made


def counterpart(run: Run, others: list[Run]) -> Run:
    """The run of another method with the same share of OOD images and the same seed, where there is one."""

    def apart(other: Run) -> tuple[bool, bool, int]:
        ratio = other.number("ood_ratio") != run.number("ood_ratio")
        return ratio, other.plan.seed != run.plan.seed, other.plan.seed

    return min(others, key=apart)


def draw_looks(found: Looks, run: Run, baseline: Run | None) -> Figure:
    """Rows of pictures."""
    nothing = [""] * len(found.images)
    rows: list[tuple[str, Sequence[np.ndarray | None], Sequence[str]]] = [("image", found.images, found.captions)]
    if baseline is not None and found.baseline is not None and found.baseline_said is not None:
        rows.append((f"{baseline.method}\nGrad-CAM", found.baseline, found.baseline_said))
    if found.partners is not None and found.partner_images is not None:
        rows.append(("paired OOD\nfeature: where", found.partners, nothing))
        rows.append(("... and its\nimage", found.partner_images, nothing))
    rows.append((f"{run.method}\nGrad-CAM", found.own, found.own_said))
    figure = Figure(figsize=(1.55 * len(found.images) + 1.4, 1.75 * len(rows) + 0.3), layout="constrained", dpi=130)
    grid = figure.subplots(len(rows), len(found.images), squeeze=False)
    for axes_row, (name, pictures, words) in zip(grid, rows, strict=True):
        for axes, picture, word in zip(axes_row, pictures, words, strict=True):
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(visible=False)
            axes.set_title(word, fontsize=7)
            if picture is None:
                axes.text(0.5, 0.5, "no partner\nin the bank", ha="center", va="center", fontsize=7)
            else:
                axes.imshow(picture, interpolation="nearest")
        axes_row[0].set_ylabel(name, fontsize=8)
    figure.suptitle(f"{run.data_name}: red = speaks most for it, blue = nothing", fontsize=9)
    return figure
