"""What a model says of a pile: class, probability, OOD score and in or out for each photo that teaches nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.source import Progress
from osp.errors import UserError
from osp.evaluate.estimates import tested
from osp.evaluate.thresholds import ACCEPT
from osp.models.model import Model, Prediction
from osp.models.photo import PhotoModel
from osp.photos.doubts import next_to_label
from osp.photos.features import Rows, compute
from osp.photos.folder import decide, labels_of, nones_of
from osp.photos.photographs import Listed
from osp.recipe import Plan
from osp.runs.fitted import LABELS, RESULT, result_of
from osp.runs.folder import RunFolder

AT_ONCE, MOST_AT_ONCE = 512, 1 << 16
"""Files whose predictions come together at first and at most; each time twice as many, for every look reads the whole
cache."""


def decisions(
    model: Model, run: Path, files: Sequence[str], accept: float, progress: Progress | None
) -> tuple[list[Prediction], int]:
    """Predictions of a pile, and how many of its photos are left out because they lie sorted elsewhere.

    Those are known by their place and, of a fit, by their content, too. What a person has said of photos of the pile
    itself stands in place of what the model says. Features that a fit has computed come from the cache.
    """
    labels = labels_of(run) if (run / LABELS).exists() else []
    folders = _class_folders(model, run)
    if not isinstance(model, PhotoModel):
        unlabeled = _elsewhere(files, [label.file for label in labels], folders)
        return list(model.predict_files(unlabeled, accept, progress)), len(files) - len(unlabeled)
    asked = _elsewhere(files, (), folders)
    knows_all_folders = (run / RESULT).exists() and result_of(run).get("sorted_before") is not None
    here = {os.path.realpath(file) for file in asked} if knows_all_folders else set()
    told = {label.content: label.name for label in labels if os.path.realpath(label.file) in here}
    sorted_ones, outside = {label.content for label in labels} - told.keys(), {each.content for each in nones_of(run)}
    features = compute(asked, model.backbone, progress=progress)
    said = zip(features.keys, decide(model.instant, features, accept, outside), strict=True)
    found = [_as_told(replace(each, content=key), told.get(key)) for key, each in said if key not in sorted_ones]
    found += [Prediction(file, reason=reason) for file, reason in features.unreadable]
    return found, len(files) - len(found)


def _as_told(said: Prediction, name: str | None) -> Prediction:
    """What a person says of a photo is sure."""
    if name is None:
        return said
    return replace(said, label=name, probability=1.0, belongs=1.0, inside=True, group="")


def predict_cached(
    model: Model, files: Sequence[str], accept: float, progress: Progress | None
) -> Iterator[Prediction]:
    """One prediction per file, in order; features of a photo model come from the cache, and go there."""
    if not isinstance(model, PhotoModel):
        yield from model.predict_files(files, accept, progress)
        return
    start, size = 0, AT_ONCE
    while part := files[start : start + size]:
        features = compute(part, model.backbone, progress=progress)
        said, failed = decide(model.instant, features, accept, every=True), iter(features.unreadable)
        kept = set(features.kept.tolist())
        for place, file in enumerate(part):
            yield replace(next(said), file=file) if place in kept else Prediction(file, reason=next(failed)[1])
        start, size = start + size, min(2 * size, MOST_AT_ONCE)


def _class_folders(model: Model, run: Path) -> list[str]:
    """The folders of sorted photos that a run was given, one per class: not all that lies in them has taught it."""
    roots: list[str | None] = []
    if (run / RESULT).exists() and isinstance(model, PhotoModel):
        result = result_of(run)
        roots = [result.get("sorted"), *(result.get("sorted_before") or ())]
    elif (plan := RunFolder(run).plan).exists() and (made := Plan.read(plan)).data == "folder":
        roots = [made.data_dir]
    return [os.path.join(root, name) for root in roots if root is not None for name in model.class_names]


def _elsewhere(files: Sequence[str], taken: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Those of the files that are none of the taken ones and lie in none of the folders, links followed."""
    others = {os.path.realpath(file) for file in taken}
    inside = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)
    real = ((file, os.path.realpath(file)) for file in files)
    return [file for file, place in real if place not in others and not place.startswith(inside)]


def figures_on(
    model: Model, listed: Listed, classes: Sequence[str], progress: Progress | None = None
) -> dict[str, Any]:
    """How good a model is on test photos, whose labels count in `classes`; unreadable ones are left out."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = [
        (numbers.get(each.label, len(numbers)), label, each.ood_score)
        for each, label in zip(model.predict_files(listed.files, progress=progress), listed.labels, strict=True)
        if not each.reason
    ]
    if not any(label >= 0 for _, label, _ in found):
        raise UserError("No test photo of a known class can be read.")
    predicted, truth, scores = map(np.array, zip(*found, strict=True))
    return tested(predicted, truth, scores, model.threshold_for(ACCEPT))


def worth_labeling(
    model: Model, run: Path, files: Sequence[str], count: int, accept: float, progress: Progress | None
) -> list[tuple[str, str]]:
    """(file, reason) of the photos of a pile most worth labeling, those that have a label left out."""
    if not isinstance(model, PhotoModel):
        raise UserError(f"--next needs a run of osp fit; {run} was trained by osp train.")
    features = compute(files, model.backbone, progress=progress)
    known = {label.content for label in (*labels_of(run), *nones_of(run))}
    open_ones = [i for i, key in enumerate(features.keys) if key not in known]
    chosen = next_to_label(model.instant, Rows(features, np.array(open_ones, np.int64)), count, accept)
    return [(features.files[open_ones[each.position]], each.reason) for each in chosen]
