"""Figures 1b and 1c: maps of the features of test images, ID by class and OOD black, one panel per method."""

from __future__ import annotations

import contextlib
import json

import numpy as np
from matplotlib.figure import Figure

from osp.bench.figures._lines import by_method, by_task
from osp.errors import UserError
from osp.files import write_text
from osp.report.embedding import FeatureMap, draw_map, feature_map
from osp.runs.run import Run


def figures(runs: list[Run]) -> dict[str, Figure]:
    """The run with the lowest seed of each method on each task."""
    drawn = []
    for data, members in by_task(runs).items():
        for method, own in by_method(members).items():
            run = min(own, key=lambda each: each.plan.seed)
            if (found := kept_map(run)) is not None:
                drawn.append((data, method, run, found))
    if not drawn:
        raise UserError(
            "figure-tsne: none of the runs has its predictions (predictions.npz) or a map that was drawn from them "
            "(map.json); run them here."
        )
    columns = min(len(drawn), 3)
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(4.6 * columns, 4.2 * rows), layout="constrained", dpi=120)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in axes[len(drawn) :]:
        panel.axis("off")
    for number, (panel, (data, method, run, found)) in enumerate(zip(axes, drawn, strict=False)):
        title = f"{method} on {data}{scores(run)}"
        draw_map(panel, found, run.class_names, title, legend=number % columns == columns - 1)
    return {"": figure}


def kept_map(run: Run) -> FeatureMap | None:
    """The map of a run. It stays in the run's folder, so that a run kept without its features can still be drawn."""
    found = feature_map(run)
    if found is not None:
        points = {"places": found.places.astype(float).round(4).tolist(), "classes": found.classes.tolist()}
        with contextlib.suppress(UserError):  # a store that cannot be written is drawn all the same
            write_text(run.folder.map, json.dumps(points) + "\n")
        return found
    kept = run.folder.read_map()
    return None if kept is None else FeatureMap(np.array(kept["places"]), np.array(kept["classes"]))


def scores(run: Run) -> str:
    """Accuracy and AUROC, on a line of their own."""
    found = {"accuracy": run.number("accuracy"), "AUROC": run.number("auroc")}
    said = ", ".join(f"{name} {value:.1f}" for name, value in found.items() if value)
    return said and f"\n{said}"
