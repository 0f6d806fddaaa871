"""Which images of a run are worth a look. From the predictions alone; `Gallery.shots` says where to find each image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from osp.evaluate.predictions import Group, PoolPredictions, Predictions
from osp.report.reading import FinishedRun

NEIGHBORS = 5


@dataclass(frozen=True)
class Shot:
    """One image with a word about it."""

    test: bool
    """Whether its row counts through the test images or through the training images."""
    row: int
    key: int
    """The class under which it is filtered."""
    caption: str
    ood: bool = False
    """Known to be OOD."""


@dataclass(frozen=True)
class Gallery:
    title: str
    shots: list[Shot]
    note: str = ""


def galleries(run: FinishedRun, per_class: int | None = None, most: int = 24) -> list[Gallery]:
    """Surest and least sure of each class, most and least foreign, mistakes, labels that look wrong; no empty ones."""
    predictions, names = run.predictions, run.class_names
    if predictions is None:
        return []
    each = per_class or (6 if len(names) <= 12 else 3 if len(names) <= 30 else 1)
    found = [
        *_by_confidence(predictions.pool, run.truth, names, each),
        *_by_score(predictions, run.truth, names, most),
        *_mistakes(predictions, names, most),
        *_doubtful_labels(predictions, names, most),
    ]
    return [gallery for gallery in found if gallery.shots]


def _by_confidence(pool: PoolPredictions, truth: np.ndarray | None, names: tuple[str, ...], each: int) -> list[Gallery]:
    surest: list[Shot] = []
    unsure: list[Shot] = []
    for number, name in enumerate(names):
        members = np.flatnonzero(pool.predicted == number)
        order = members[np.argsort(-pool.confidence[members], kind="stable")]
        cut = min(each, max(1, len(order) // 2)) if len(order) else 0
        for rows, into in ((order[:cut], surest), (order[::-1][: min(cut, len(order) - cut)], unsure)):
            into += [
                Shot(False, int(pool.ids[row]), number, f"{name} {_percent(pool.confidence[row])}", _known(truth, row))
                for row in rows
            ]
    framed = " Dashed frame: known to show none of the classes." if truth is not None and truth.any() else ""
    return [
        Gallery("Surest of each class", surest, f"Unlabelled images that the model is most sure of.{framed}"),
        Gallery("Least sure of each class", unsure, f"Unlabelled images that it would rather not name.{framed}"),
    ]


def _by_score(predictions: Predictions, truth: np.ndarray | None, names: tuple[str, ...], most: int) -> list[Gallery]:
    pool, scores = predictions.pool, predictions.pool.scores[predictions.score]
    order = np.argsort(scores, kind="stable")
    count = min(most, -(-len(order) // 2))

    def shots(rows: np.ndarray) -> list[Shot]:
        return [
            Shot(
                False,
                int(pool.ids[row]),
                int(pool.predicted[row]),
                f"{scores[row]:.3g} ({names[pool.predicted[row]]}?)",
                _known(truth, row),
            )
            for row in rows
        ]

    aside = f"Unlabelled images by OOD score; above {predictions.threshold:.3g} an image counts as foreign."
    return [
        Gallery("Most foreign", shots(order[::-1][:count]), aside),
        Gallery("Least foreign", shots(order[: min(count, len(order) - count)])),
    ]


def _mistakes(predictions: Predictions, names: tuple[str, ...], most: int) -> list[Gallery]:
    test = predictions.groups["test"]
    if test.targets is None or not len(test):
        return []
    confidence = _softmax(test.logits).max(axis=1)
    wrong = np.flatnonzero(test.predicted != test.targets)
    order = wrong[np.argsort(-confidence[wrong], kind="stable")][:most]
    shots = [
        Shot(
            True,
            int(test.ids[row]),
            int(test.targets[row]),
            f"{names[test.targets[row]]}, taken for {names[test.predicted[row]]} {_percent(confidence[row])}",
        )
        for row in order
    ]
    return [Gallery("Mistakes", shots, f"{len(wrong):,} of {len(test):,} test images; the surest mistakes first.")]


def _doubtful_labels(predictions: Predictions, names: tuple[str, ...], most: int) -> list[Gallery]:
    """Labelled images whose five nearest others, by the angle of their features, all have another label."""
    groups = [predictions.groups[name] for name in ("labeled", "validation") if len(predictions.groups[name])]
    known = [group for group in groups if group.targets is not None]
    if not known:
        return []
    rows = doubtful(np.concatenate([group.features for group in known]), _targets(known))
    ids, targets = np.concatenate([group.ids for group in known]), _targets(known)
    shots = [Shot(False, int(ids[row]), int(targets[row]), f"labelled {names[targets[row]]}") for row in rows[:most]]
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


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"


def _known(truth: np.ndarray | None, row: int) -> bool:
    return truth is not None and bool(truth[row])
