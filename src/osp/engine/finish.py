"""The end of a run: one look at all images, the files that stay, the result."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from osp import distributed
from osp.engine.data import Data, pixel_views
from osp.engine.loop import Loop
from osp.evaluate.predictions import Group, Predictions
from osp.evaluate.result import measure
from osp.evaluate.thresholds import thresholds
from osp.files import write_arrays
from osp.plugins import plain_name
from osp.recipe import Plan
from osp.runs.folder import RunFolder

OWN_FILES = ("split", "predictions", "failed-batch")
"""Arrays that the run itself writes, whatever a method calls its own; many systems do not tell a from A."""
OOD_SET = "ood:"
"""Before the names of OOD sets that were not in the pool, among the groups of predictions."""


def finish(loop: Loop, data: Data) -> tuple[dict[str, Any], Predictions]:
    """Test once, write the reported model, the predictions and, last of all, the result; the last two.

    All processes look at the images; the first one measures, writes, and tells the others the result.
    """
    started = time.monotonic()
    predictions = predict_everything(loop, data)
    return distributed.from_first(lambda: write_all(loop, data, predictions, started)), predictions


def write_all(loop: Loop, data: Data, predictions: Predictions, started: float) -> dict[str, Any]:
    """The files of a finished run; the result."""
    for name, group in tested_before(loop.folder).items():  # those images need not be here any more
        predictions.groups.setdefault(name, group)
    loop.save_model(loop.folder.model, known_in(predictions.groups).scores, data)
    write_arrays(loop.folder.predictions, predictions.arrays())
    for name, arrays in loop.method.artifacts().items():
        file = f"method-{name}.npz" if name.lower() in OWN_FILES else f"{name}.npz"
        write_arrays(loop.folder.path / file, {key: tensor.cpu().numpy() for key, tensor in arrays.items()})
    found = measure(predictions, data.truth)
    own = loop.method.own_score.name
    result = {
        **describe(loop.plan, data),
        "steps": loop.at.done,
        "images_seen": loop.at.images_seen,
        "seconds": round(loop.at.seconds + time.monotonic() - started, 2),
        **found,
        "own_score": own,
        "own_auroc": found["scores"][own]["auroc"],
        "versions": loop.plan.versions,
        "identity": loop.plan.identity(),
        "warnings": loop.at.warnings + warnings_of(loop, data, predictions, found),
    }
    loop.folder.write_result(result)
    loop.folder.forget_previous()
    return result


def predict_everything(loop: Loop, data: Data) -> Predictions:
    """One look at all images with the reported weights: the only time test images are seen."""
    split, evaluation = data.split, loop.evaluation
    evaluation.fit()
    tested = pixel_views(data.test, data, loop.plan, loop.feed.device)
    groups = {
        "test": evaluation.outputs(split.test, split.test_targets, tested),
        "test_ood": evaluation.outputs(split.test_ood, None, tested),
        "validation": evaluation.outputs(split.val, split.val_targets),
        "labeled": evaluation.outputs(split.labeled, split.labeled_targets),
    }
    for name, images in data.other_ood.items():
        views = pixel_views(images, data, loop.plan, loop.feed.device)
        groups[OOD_SET + name] = evaluation.outputs(np.arange(len(images)), None, views)
    return Predictions(evaluation.reported, thresholds(known_in(groups).scores), groups, evaluation.pool())


def tested_before(folder: RunFolder) -> dict[str, Group]:
    """What the model of a finished run has said of other OOD sets."""
    if folder.read_result() is None or not folder.predictions.exists():
        return {}
    groups = Predictions.load(folder.predictions).groups
    return {name: group for name, group in groups.items() if name.startswith(OOD_SET)}


def known_in(groups: dict[str, Group]) -> Group:
    """Images known to be ID, for thresholds: those of validation or, where there are none, the labeled ones."""
    return groups["validation"] if len(groups["validation"]) else groups["labeled"]


def describe(plan: Plan, data: Data) -> dict[str, Any]:
    """What was run, in the words of the plan; where that gives no OOD ratio, the split's own, if anybody knows it."""
    ratio = plan.ood_ratio
    if ratio is None and data.truth is not None:
        ratio = float(data.truth.mean()) if len(data.truth) else 0.0
    return {
        "method": plan.method_name,
        "dataset": plain_name(plan.data),
        "ood_data": None if plan.ood_data is None else plain_name(plan.ood_data),
        "data_variant": data.variant,
        "ood_ratio": ratio,
        "labels_per_class": plan.labels_per_class,
        "unlabeled": len(data.split.unlabeled),
        "class_names": list(data.class_names),
        "network": plain_name(plan.network),
        "preset": plan.preset,
        "scale": plan.scale,
        "seed": plan.seed,
    }


IDLE = 1e-3
"""A mechanism whose activity is smaller than this on average did nothing to speak of."""


def warnings_of(loop: Loop, data: Data, predictions: Predictions, found: dict[str, Any]) -> list[str]:
    """What the result must say against itself: a mechanism that hardly ever acted, files left out, a pool that did
    harm, a network that names one class for every image, a score that is poor on unseen kinds."""
    sums, counts, name = loop.activity.sums, loop.activity.counts, loop.method.name
    means = {key: float(sums[key]) / counts[key] if key in sums else 0.0 for key in loop.method.mechanism}
    warnings = [
        f"{name}: {key} was {mean:.2g} on average; the method's mechanism was idle"
        for key, mean in means.items()
        if mean < IDLE
    ]
    if data.skipped:
        files = "file was" if data.skipped == 1 else "files were"
        warnings.append(f"{data.skipped} unreadable image {files} left out")
    warnings += pool_warnings(loop.folder.read_metrics(), len(known_in(predictions.groups)))
    if loop.at.done >= 100 and len(np.unique(predictions.groups["test"].predicted)) == 1:
        warnings.append(
            "the network gives every test image the same class; try a smaller learning rate or another seed"
        )
    return warnings + unseen_warnings(found)


def pool_warnings(lines: list[dict[str, Any]], images: int) -> list[str]:
    """Where the classes are learned from labels first and from the pool later: did the pool do more harm than good?

    It is said where validation accuracy ends more than two of its standard errors below its best of the first stage.
    """
    found = [(line["stage"], line["val_accuracy"]) for line in lines if line.get("val_accuracy") is not None]
    if not found or found[0][0] == found[-1][0]:
        return []
    before, now = max(accuracy for stage, accuracy in found if stage == found[0][0]), found[-1][1]
    if before - now <= 2 * (before * (100 - before) / images) ** 0.5:
        return []
    return [
        f"validation accuracy was {before:.1f} % in the first stage and is {now:.1f} % at the end: the pool did "
        "more harm than good; compare with --method supervised"
    ]


UNSEEN = 2.0
"""Points of AUROC by which the reported score may be worse than a simple one before it is said."""


def unseen_warnings(found: dict[str, Any]) -> list[str]:
    """A score that asks the pool knows the kinds that the pool holds: is it worse on others than softmax and knn?"""
    warnings = []
    for name, each in found["other_ood"].items():
        simple = {score: each["scores"][score]["auroc"] for score in ("softmax", "knn") if score in each["scores"]}
        best = max(simple, key=lambda score: simple[score] or 0.0, default=None)
        mine, other = each["auroc"], simple.get(best) if best is not None else None
        if mine is not None and other is not None and mine < other - UNSEEN:
            warnings.append(
                f"on {name}, which is not in the pool, the reported score {found['score']} has an AUROC of {mine:.1f} "
                f"and {best} {other:.1f}; for such images: --set score={best}"
            )
    return warnings
