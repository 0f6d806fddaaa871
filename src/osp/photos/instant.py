"""The instant answer: a classifier, an OOD score and honest estimates of both from frozen features, in seconds.

Features are centred by the mean of labels and pile and scaled to length one: z = (f - m) / |f - m|.

- *Classes*: multinomial logistic regression on z with class-balanced weights, its regularisation chosen by
  cross-validation. Where cross-validation finds that it helps, it is applied to the mean of z and of the neighbours of
  z in the pile. The logits are divided by a temperature.
- *OOD score* (larger = more OOD): s(z) = 1 - max_c (cos(z, mean of class c) + mean of the five largest cos(z, image of
  class c)) / 2, averaged over z and its neighbours in the pile, whose own scores are averaged in the same way.
- *Estimates* come from labelled images held out in turn; nothing is known of the pile's truth.

Nothing here knows files: features are rows of arrays, or of something that gives them when asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from osp.errors import UserError
from osp.evaluate.metrics import softmax
from osp.photos.cut import known_share, threshold
from osp.photos.estimates import Estimate, estimate_of, fit_temperature, folds_of, log_loss

if TYPE_CHECKING:
    from osp.photos.features import Rows

STRENGTHS = (1.0, 5.0, 25.0, 125.0)
"""Inverse regularisation (scikit-learn's C) to choose from."""
USUAL_STRENGTH, USUAL_TEMPERATURE = 5.0, 0.3
"""Where nothing can be held out."""
NEIGHBORS = 20
NEAREST_LABELS = 5
REFERENCES = 4096
"""Images of the pile kept for neighbours: bounds time and the size of a saved model (21 MB at 1280 features)."""
HELD_OUT_SCORES = 500
"""At most so many labelled images are scored as if they had no label."""
_CHUNK = 2048


@dataclass(frozen=True)
class Adapter:
    """z + up relu(down z + bias): what training has learned to add to what the head is applied to."""

    down: np.ndarray
    bias: np.ndarray
    up: np.ndarray

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        adapted: np.ndarray = rows + np.maximum(rows @ self.down.T + self.bias, 0) @ self.up.T
        return adapted


@dataclass(frozen=True)
class Instant:
    """What was fitted. All arrays are float32; rows of features have length one."""

    class_names: tuple[str, ...]
    mean: np.ndarray
    weight: np.ndarray
    """classes × features: the linear head on centred features of length one."""
    bias: np.ndarray
    strength: float
    temperature: float
    labeled: np.ndarray
    labels: np.ndarray
    references: np.ndarray
    """Rows of the pile in which neighbours are looked for."""
    reference_scores: np.ndarray
    neighbors: int
    smoothing: float
    """Weight of the neighbours' mean in what the head is applied to: 0 or 1/2."""
    id_scores: np.ndarray
    """OOD scores of labelled images, each seen as if it had no label; empty where nothing can be held out."""
    id_weights: np.ndarray
    pile_scores: np.ndarray
    """OOD scores of the references."""
    estimate: Estimate | None
    """None where every class has one image."""
    held_out: np.ndarray | None = None
    """Probabilities of the labelled images, n×K, each from the others; zero where an image is the only one of its
    class, None where all are."""
    adapter: Adapter | None = None
    """Where training has gone on from here (`osp.photos.learning`)."""
    head_mean: np.ndarray | None = None
    """What the head's inputs are centred by where that is not `mean`: where labels alone tell the classes apart better
    than labels and pile do."""

    def with_classes_of(self, alone: Instant) -> Instant:
        """Classes as an answer without a pile tells them apart, OOD scores as here."""
        return replace(
            self,
            weight=alone.weight,
            bias=alone.bias,
            strength=alone.strength,
            temperature=alone.temperature,
            smoothing=0.0,
            estimate=alone.estimate,
            held_out=alone.held_out,
            adapter=None,
            head_mean=alone.mean,
        )

    def center(self, features: np.ndarray) -> np.ndarray:
        """Raw features to centred features of length one."""
        return center(features, self.mean)

    def logits(self, features: np.ndarray | Rows, smooth: bool = True) -> np.ndarray:
        """Logits of raw features, before the temperature; of the linear head alone with `smooth=False`."""
        return self._by_chunk(features, lambda rows: self._logits(rows, smooth), self.head_mean)

    def predict_proba(self, features: np.ndarray | Rows) -> np.ndarray:
        """Calibrated class probabilities of raw features."""
        return softmax(self.logits(features) / self.temperature)

    def ood_score(self, features: np.ndarray | Rows) -> np.ndarray:
        """OOD scores of raw features; larger = more OOD."""
        return self._by_chunk(features, self._score)

    def threshold(self, accept: float = 0.95) -> float:
        """The OOD score up to which an image is taken for one of the classes: accepts this share of the known ones."""
        return threshold(accept, self.id_scores, self.id_weights, self.pile_scores)

    def share(self, pile_scores: np.ndarray) -> float:
        """Estimated share of the pile that belongs to one of the classes, from its OOD scores."""
        return known_share(pile_scores, self.id_scores, self.id_weights)

    def inputs(self, features: np.ndarray | Rows) -> np.ndarray:
        """What the head is applied to, of raw features."""
        return self._by_chunk(features, lambda rows: self._inputs(rows, smooth=True), self.head_mean)

    def _inputs(self, rows: np.ndarray, smooth: bool) -> np.ndarray:
        if smooth and self.smoothing:
            near = nearest(rows, self.references, self.neighbors)
            rows = (1 - self.smoothing) * rows + self.smoothing * _mean_of(self.references, near)
        return rows

    def _logits(self, rows: np.ndarray, smooth: bool) -> np.ndarray:
        rows = self._inputs(rows, smooth)
        if self.adapter is not None:
            rows = self.adapter(rows)
        logits: np.ndarray = rows @ self.weight.T + self.bias
        return logits

    def _score(self, rows: np.ndarray) -> np.ndarray:
        own = distance(rows, self.labeled, self.labels)
        if not self.neighbors:
            return own
        near = nearest(rows, self.references, self.neighbors)
        return _averaged(own, self.reference_scores[near])

    def _by_chunk(
        self, features: np.ndarray | Rows, function: Callable[[np.ndarray], np.ndarray], mean: np.ndarray | None = None
    ) -> np.ndarray:
        starts = range(0, max(len(features), 1), _CHUNK)  # at least once, for the shape of nothing
        middle = self.mean if mean is None else mean
        return np.concatenate([function(center(features[start : start + _CHUNK], middle)) for start in starts])


def fit_instant(
    labeled: np.ndarray,
    labels: np.ndarray,
    pile: np.ndarray | Rows,
    class_names: Sequence[str],
    seed: int = 0,
) -> Instant:
    """Fit on raw features of labelled images (n×D) with labels 0..K-1 and of the pile (m×D, m may be 0).

    Of the pile only the mean and the references are needed: `Rows` of it are read from the disk a few at a time.
    """
    counts = _check(labeled, labels, pile, class_names)
    classes = len(class_names)
    middle = _mean(pile, labeled, labels, counts)
    rows = center(labeled, middle)
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(len(pile))[:REFERENCES])
    references = center(pile[chosen], middle) if len(pile) else np.empty((0, rows.shape[1]), np.float32)
    neighbors = min(NEIGHBORS, len(references) // 10)
    folds = folds_of(labels, counts, np.random.default_rng(seed))  # the same with a pile and without: they are compared
    held = np.flatnonzero(folds >= 0)
    balance = 1 / (classes * counts[labels])

    near_of_labeled = nearest(rows, references, neighbors)
    strength, smoothing, temperature, estimate = USUAL_STRENGTH, 0.5 if neighbors else 0.0, USUAL_TEMPERATURE, None
    held_out: np.ndarray | None = None
    if len(held):
        around = _mean_of(references, near_of_labeled) if neighbors else None
        strength, smoothing, logits = _choose(rows, around, labels, folds, balance, classes)
        temperature = fit_temperature(logits[held], labels[held], balance[held])
        estimate = estimate_of(logits, labels, folds, balance, classes)
        held_out = ((folds >= 0)[:, None] * softmax(logits / temperature)).astype(np.float32)
    weight, bias = fit_head(rows, labels, classes, strength)

    near_of_references = nearest(references, references, neighbors)
    plain = distance(references, rows, labels)
    scores = _averaged(plain, plain[near_of_references]) if neighbors else plain
    able = np.flatnonzero(counts[labels] > 1)
    able = np.sort(generator.permutation(able)[:HELD_OUT_SCORES])
    id_scores = _held_out_scores(able, rows, labels, references, near_of_labeled, near_of_references)
    return Instant(
        class_names=tuple(class_names),
        mean=middle,
        weight=weight,
        bias=bias,
        strength=strength,
        temperature=temperature,
        labeled=rows,
        labels=np.asarray(labels, np.int64),
        references=references,
        reference_scores=scores,
        neighbors=neighbors,
        smoothing=smoothing,
        id_scores=id_scores,
        id_weights=balance[able].astype(np.float32),
        pile_scores=_averaged(plain, scores[near_of_references]) if neighbors else plain,
        estimate=estimate,
        held_out=held_out,
    )


def center(features: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """(f - mean) / |f - mean| as float32; zero where f is the mean."""
    rows: np.ndarray = np.asarray(features, np.float32) - mean
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows


def nearest(rows: np.ndarray, references: np.ndarray, count: int) -> np.ndarray:
    """Positions of the references with the largest cosine, n×count in no certain order."""
    if not count:
        return np.empty((len(rows), 0), np.int64)
    parts = [np.empty((0, count), np.int64)]
    for start in range(0, len(rows), _CHUNK):
        cosines = rows[start : start + _CHUNK] @ references.T
        parts.append(np.argpartition(-cosines, count - 1, axis=1)[:, :count])
    return np.concatenate(parts)


def distance(rows: np.ndarray, labeled: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The OOD score before averaging over neighbours: one minus the similarity to the most similar class."""
    scores: np.ndarray = 1 - similarities(rows @ labeled.T, labeled, labels).max(axis=1)
    return scores


def similarities(cosines: np.ndarray, labeled: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """To each class, from the cosines to each labelled image."""
    members = [labels == c for c in range(int(labels.max()) + 1)]
    return np.stack([similarity(cosines[:, chosen], labeled[chosen]) for chosen in members], axis=1)


def similarity(cosines: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(cosine with the members' mean + mean of the largest cosines with members) / 2."""
    with_mean = cosines.sum(axis=1) / max(float(np.linalg.norm(members.sum(axis=0))), 1e-12)
    count = min(NEAREST_LABELS, len(members))
    largest = np.partition(cosines, len(members) - count, axis=1)[:, len(members) - count :]
    average: np.ndarray = (with_mean + largest.mean(axis=1)) / 2
    return average


def _averaged(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    average: np.ndarray = (own + others.sum(axis=1)) / (1 + others.shape[1])
    return average


def _mean_of(references: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Mean of the references at each row's positions, without holding all of them at once."""
    total = np.zeros((len(near), references.shape[1]), np.float32)
    for column in near.T:
        total += references[column]
    mean: np.ndarray = total / near.shape[1]
    return mean


def _held_out_scores(
    which: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
    references: np.ndarray,
    near: np.ndarray,
    near_of_references: np.ndarray,
) -> np.ndarray:
    """Scores of labelled images, each as if it were not labelled, for its neighbours' scores too."""
    of_labeled, of_references = rows @ rows.T, references @ rows.T
    to_labeled, to_references = (similarities(cosines, rows, labels) for cosines in (of_labeled, of_references))
    scores = np.empty(len(which), np.float32)
    for place, i in enumerate(which):
        others = np.flatnonzero((labels == labels[i]) & (np.arange(len(labels)) != i))
        mine = to_labeled[i].copy()
        mine[labels[i]] = similarity(of_labeled[i : i + 1, others], rows[others])[0]
        own = 1 - mine.max()
        if not near.shape[1]:
            scores[place] = own
            continue
        ring = near[i]
        involved, back = np.unique(np.concatenate([ring, near_of_references[ring].ravel()]), return_inverse=True)
        around = to_references[involved]
        around[:, labels[i]] = similarity(of_references[np.ix_(involved, others)], rows[others])
        plain = (1 - around.max(axis=1))[back]
        of_ring = _averaged(plain[: len(ring)], plain[len(ring) :].reshape(len(ring), -1))
        scores[place] = _averaged(np.array([own]), of_ring[None])[0]
    return scores


def fit_head(rows: np.ndarray, labels: np.ndarray, classes: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Weight (classes×features) and bias of class-balanced multinomial logistic regression; every class is there.

    With fewer rows than features it is solved in the span of the rows, in which the solution lies.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # so small that several threads would mostly spin, waiting for one another
        return _fit_head(LogisticRegression, rows, labels, classes, strength)


def _fit_head(
    regression: Any, rows: np.ndarray, labels: np.ndarray, classes: int, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    basis = np.linalg.qr(rows.T.astype(np.float64))[0] if len(rows) < rows.shape[1] else np.eye(rows.shape[1])
    model = regression(C=strength, class_weight="balanced", max_iter=2000, tol=1e-5)
    model.fit(rows @ basis, labels)
    weight, bias = model.coef_ @ basis.T, model.intercept_
    if classes == 2:  # scikit-learn keeps the difference of two logits
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return weight.astype(np.float32), bias.astype(np.float32)


def _choose(
    rows: np.ndarray,
    around: np.ndarray | None,
    labels: np.ndarray,
    folds: np.ndarray,
    balance: np.ndarray,
    classes: int,
) -> tuple[float, float, np.ndarray]:
    """Strength and smoothing with the least held-out log loss (each at its best temperature), and those logits."""
    inputs = {0.0: rows} if around is None else {0.5: (rows + around) / 2, 0.0: rows}
    held = folds >= 0
    best: tuple[float, float, float, np.ndarray] = (math.inf, 0.0, 0.0, rows)
    for strength in STRENGTHS:
        logits = {smoothing: np.zeros((len(rows), classes)) for smoothing in inputs}
        for fold in range(int(folds.max()) + 1):
            out = folds == fold
            weight, bias = fit_head(rows[~out], labels[~out], classes, strength)
            for smoothing, given in inputs.items():
                logits[smoothing][out] = given[out] @ weight.T + bias
        for smoothing, found in logits.items():
            temperature = fit_temperature(found[held], labels[held], balance[held])
            loss = log_loss(found[held] / temperature, labels[held], balance[held])
            if loss < best[0]:
                best = (loss, strength, smoothing, found)
    return best[1:]


def _mean(pile: np.ndarray | Rows, labeled: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of labels and pile; without a pile, of the classes' means, so that a large class does not hide the others."""
    if not len(pile):
        means = [np.asarray(labeled[labels == c], np.float64).mean(axis=0) for c in range(len(counts))]
        return np.asarray(np.mean(means, axis=0), np.float32)
    total = np.asarray(labeled, np.float64).sum(axis=0)
    for start in range(0, len(pile), _CHUNK):
        total += np.asarray(pile[start : start + _CHUNK], np.float64).sum(axis=0)
    return np.asarray(total / (len(labeled) + len(pile)), np.float32)


def _check(labeled: np.ndarray, labels: np.ndarray, pile: np.ndarray | Rows, class_names: Sequence[str]) -> np.ndarray:
    """Images per class."""
    if len(class_names) < 2:
        only = f" (only {class_names[0]!r} is there)" if class_names else ""
        raise UserError(f"A classifier needs at least two classes{only}. Sort images of another class into a folder.")
    if labeled.ndim != 2 or len(labeled) != len(labels) or (len(pile) and pile.shape[1:] != labeled.shape[1:]):
        raise ValueError(f"labeled {labeled.shape}, labels {labels.shape}, pile {pile.shape} do not fit together")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(class_names):
        raise ValueError(f"labels lie in {labels.min()}..{labels.max()}, classes are 0..{len(class_names) - 1}")
    counts = np.bincount(labels, minlength=len(class_names))
    if not counts.all():
        empty = class_names[int(np.flatnonzero(counts == 0)[0])]
        raise UserError(
            f"The class {empty!r} has no readable image. Put some into its folder, or take the folder away."
        )
    return counts
