"""Which images of a run are worth a look. From the predictions alone; `Shot.where` says where to find each image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from osp.evaluate.metrics import softmax
from osp.evaluate.predictions import Group, PoolPredictions, Predictions
from osp.report import gallery
from osp.report.gallery import Gallery, Shot, both_ends, percent, taken_for
from osp.runs.run import Run

NEIGHBORS = 5


class Row(NamedTuple):
    """Where an image of a run is found."""

    test: bool
    """Whether the number counts through the test images or through the training images."""
    number: int


Images = list[Gallery[Row]]


def galleries(run: Run, per_class: int | None = None, most: int = 24) -> Images:
    """Surest and least sure of each class, most and least foreign, mistakes, labels that look wrong; no empty ones."""
    predictions, names = run.predictions, run.class_names
    if predictions is None:
        return []
    count = per_class or (6 if len(names) <= 12 else 3 if len(names) <= 30 else 1)
    found = [
        *_by_confidence(predictions.pool, run.truth, names, count),
        *_by_score(predictions, run.truth, names, most),
        *_mistakes(predictions, names, most),
        *_doubtful_labels(predictions, names, most),
    ]
    return [each for each in found if each.shots]


def _by_confidence(pool: PoolPredictions, truth: np.ndarray | None, names: tuple[str, ...], each: int) -> Images:
    surest: list[Shot[Row]] = []
    unsure: list[Shot[Row]] = []
    for number, name in enumerate(names):
        members = np.flatnonzero(pool.predicted == number)
        order = members[np.argsort(-pool.confidence[members], kind="stable")]
        for rows, into in zip(both_ends(order.tolist(), each), (surest, unsure), strict=True):
            into += [
                Shot(_of_pool(pool, row), number, f"{name} {percent(pool.confidence[row])}", _known(truth, row))
                for row in rows
            ]
    framed = " Dashed frame: known to show none of the classes." if truth is not None and truth.any() else ""
    return [
        Gallery("Surest of each class", surest, f"Unlabelled images that the model is most sure of.{framed}"),
        Gallery("Least sure of each class", unsure, f"Unlabelled images that it would rather not name.{framed}"),
    ]


def _by_score(predictions: Predictions, truth: np.ndarray | None, names: tuple[str, ...], most: int) -> Images:
    pool, scores = predictions.pool, predictions.pool.scores[predictions.score]

    def shot(row: int) -> Shot[Row]:
        predicted = int(pool.predicted[row])
        return Shot(_of_pool(pool, row), predicted, f"{scores[row]:.3g} ({names[predicted]}?)", _known(truth, row))

    aside = f"Unlabelled images by OOD score; above {predictions.threshold:.3g} an image counts as foreign."
    return gallery.by_score(np.argsort(scores, kind="stable").tolist(), most, shot, aside)


def _mistakes(predictions: Predictions, names: tuple[str, ...], most: int) -> Images:
    test = predictions.groups["test"]
    if test.targets is None or not len(test):
        return []
    confidence = softmax(test.logits).max(axis=1)
    wrong = np.flatnonzero(test.predicted != test.targets)
    order = wrong[np.argsort(-confidence[wrong], kind="stable")][:most]
    shots = [
        Shot(
            Row(True, int(test.ids[row])),
            int(test.targets[row]),
            taken_for(names[test.targets[row]], names[test.predicted[row]], confidence[row]),
        )
        for row in order
    ]
    return [Gallery("Mistakes", shots, f"{len(wrong):,} of {len(test):,} test images; the surest mistakes first.")]


def _doubtful_labels(predictions: Predictions, names: tuple[str, ...], most: int) -> Images:
    """Labelled images whose five nearest others, by the angle of their features, all have another label."""
    groups = [predictions.groups[name] for name in ("labeled", "validation") if len(predictions.groups[name])]
    known = [group for group in groups if group.targets is not None]
    if not known:
        return []
    rows = doubtful(np.concatenate([group.features for group in known]), _targets(known))
    ids, targets = np.concatenate([group.ids for group in known]), _targets(known)
    shots = [
        Shot(Row(False, int(ids[row])), int(targets[row]), f"labelled {names[targets[row]]}") for row in rows[:most]
    ]
    why = f"Labelled images whose {NEIGHBORS} nearest others, by their features, all have another label."
    return [Gallery("Labels that look wrong", shots, why)]


def doubtful(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rows whose `NEIGHBORS` nearest other rows all have another target; none where a class is smaller than that."""
    if len(targets) <= NEIGHBORS:
        return np.empty(0, np.int64)
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    common = np.isin(targets, np.flatnonzero(np.bincount(targets) > NEIGHBORS))
    found = []
    for row in np.flatnonzero(common):
        alike = units @ units[row]
        alike[row] = -np.inf
        if (targets[np.argpartition(-alike, NEIGHBORS)[:NEIGHBORS]] != targets[row]).all():
            found.append(row)
    return np.array(found, np.int64)


def _targets(groups: list[Group]) -> np.ndarray:
    return np.concatenate([group.targets for group in groups if group.targets is not None])


def _of_pool(pool: PoolPredictions, row: int) -> Row:
    return Row(False, int(pool.ids[row]))


def _known(truth: np.ndarray | None, row: int) -> bool:
    return truth is not None and bool(truth[row])
