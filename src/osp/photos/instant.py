"""Fit the instant answer (`osp.models.instant`) and honest estimates of it from frozen features, in seconds.

- *Classes*: multinomial logistic regression with class-balanced weights. Its regularization, and whether it is applied
  to the mean of an image and its neighbors in the pile, are chosen by cross-validation, as is the temperature.
- *Estimates* come from labeled images held out in turn; nothing is known of the pile's truth.

Nothing here knows files: features are rows of arrays, or of something that gives them when asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osp.errors import UserError
from osp.evaluate.belonging import EVEN
from osp.evaluate.estimates import estimate_of, folds_of
from osp.evaluate.metrics import softmax
from osp.evaluate.thresholds import fit_temperature, log_loss
from osp.models.instant import (
    FeatureRows,
    Instant,
    by_class,
    centered,
    distance,
    lengths,
    nearest,
    products,
    similarities,
    similarity,
    tensor,
)
from osp.parts.clusters import fit_clusters
from osp.parts.pool_score import PoolAsked, ask_pool
from osp.photos.asking import NONE, OPEN, ask_person, lay_out
from osp.scores.neighbors import spread_rows

STRENGTHS = (1.0, 5.0, 25.0, 125.0)
"""Inverse regularization (scikit-learn's C) to choose from."""
USUAL_STRENGTH, USUAL_TEMPERATURE = 5.0, 0.3
"""Where nothing can be held out."""
NEIGHBORS = 20
REFERENCES = 4096
"""Images of the pile kept for neighbors: bounds time and the size of a saved model (21 MB at 1280 features)."""
LEAST_PILE = 30
"""Photos from which a pile is asked. On ten the labels alone find unknown photos as well or better."""
BALANCED = 12
"""Labels of classes for one of none of them, and the reverse, up to which these can be weighed against one another."""
Ask = Callable[[np.ndarray], PoolAsked]
"""What is asked about a pile when these labels are hidden."""
_CHUNK = 512


@torch.no_grad()
def folds_for(
    labeled: np.ndarray, labels: np.ndarray, counts: np.ndarray, seed: int, asked_person: bool = False
) -> np.ndarray:
    """The fold of each label, -1 where its class has no other: the same for all answers that are compared, and not by
    the order in which a person answered."""
    order = np.lexsort(labeled[:, :8].T) if asked_person else np.arange(len(labels))
    folds = np.empty(len(labels), np.int64)
    folds[order] = folds_of(labels[order], counts, np.random.default_rng(seed))
    return folds


def fit_instant(
    labeled: np.ndarray,
    labels: np.ndarray,
    pile: np.ndarray | FeatureRows,
    class_names: Sequence[str],
    seed: int = 0,
    none: np.ndarray | None = None,
    asked_person: bool = False,
    grouped: np.ndarray | None = None,
) -> Instant:
    """Fit on raw features of labeled images (n×D) with labels 0..K-1 and of the pile (m×D, m may be 0).

    Of the pile only the mean and the references are needed: Rows of it are read from the disk a few at a time. Images
    known to be of no class (`none`, raw features) teach the OOD score where there is a pile to ask. `asked_person`: a
    person has labeled the pile by the questions of `osp label`, and the answer is that of its page. Labels of a whole
    group that looks alike (`grouped`, a mask) teach classes, but do not say how known images are scored: they are the
    most typical of their kind, and a threshold set by them would shut out the rest of it.
    """
    counts = _check(labeled, labels, pile, class_names)
    classes = len(class_names)
    middle = _mean(pile, labeled, labels, counts)
    rows = centered(tensor(labeled), tensor(middle))
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(len(pile))[:REFERENCES])
    sample = tensor(pile[chosen]) if len(pile) else tensor(labeled[:0])
    references = centered(sample, tensor(middle))
    neighbors = min(NEIGHBORS, len(references) // 10) if len(references) >= LEAST_PILE else 0
    folds = folds_for(labeled, labels, counts, seed, asked_person)
    held = np.flatnonzero(folds >= 0)
    usual = np.ones(len(labels), bool) if grouped is None or grouped[held].all() else ~grouped
    balance = 1 / (classes * counts[labels])

    near_of_labeled = _nearest(rows, references, neighbors)
    strength, smoothing, temperature, estimate = USUAL_STRENGTH, 0.5 if neighbors else 0.0, USUAL_TEMPERATURE, None
    held_out: np.ndarray | None = None
    if len(held):
        around = _mean_of(references, near_of_labeled) if neighbors else None
        strength, smoothing, logits = _choose(rows.numpy(), around, labels, folds, balance, classes)
        temperature = fit_temperature(logits[held], labels[held], balance[held])
        estimate = estimate_of(logits, labels, folds, balance, classes)
        held_out = ((folds >= 0)[:, None] * softmax(logits / temperature)).astype(np.float32)
    weight, bias = fit_head(rows.numpy(), labels, classes, strength)

    asked, cut, given = None, None, torch.from_numpy(np.asarray(labels, np.int64))
    if neighbors:
        outside = sample[:0] if none is None else tensor(none)
        said = asked_person and len(labeled) <= BALANCED * len(outside) <= BALANCED**2 * len(labeled)
        ask = (_by_person if said else _by_pool)(tensor(labeled), given, sample, classes, outside)
        asked, cut = ask(np.zeros(len(labels), bool)), EVEN if said else None
        pile_scores = scores_of(asked, sample)
        known = held[usual[held]]
        id_scores = _held_out_scores(tensor(labeled), folds, ask)[known]
    else:
        known = np.flatnonzero((counts[labels] > 1) & usual)
        members, sizes = by_class(rows, labels, classes)
        pile_scores = distance(references @ members.T, lengths(members, sizes), sizes).numpy()
        id_scores = _held_out_distances(known, rows, labels)
    return Instant(
        class_names=tuple(class_names),
        mean=middle,
        weight=weight,
        bias=bias,
        strength=strength,
        temperature=temperature,
        labeled=rows.numpy(),
        labels=np.asarray(labels, np.int64),
        references=references.numpy(),
        reference_scores=pile_scores,
        neighbors=neighbors,
        smoothing=smoothing,
        id_scores=id_scores,
        id_weights=balance[known].astype(np.float32),
        pile_scores=pile_scores,
        estimate=estimate,
        held_out=held_out,
        asked=asked,
        cut=cut,
    )


def _nearest(rows: Tensor, references: Tensor, count: int) -> Tensor:
    """Positions of the nearest references, a few rows at a time; n×0 without any."""
    if not count:
        return torch.empty(len(rows), 0, dtype=torch.int64)
    return torch.cat([nearest(part, references, count) for part in torch.split(rows, _CHUNK)])


def _mean_of(references: Tensor, near: Tensor) -> np.ndarray:
    """Mean of the references at each row's positions, a few rows at a time."""
    return torch.cat([references[part].mean(dim=1) for part in torch.split(near, _CHUNK)]).numpy()


def _by_pool(labeled: Tensor, labels: Tensor, pile: Tensor, classes: int, none: Tensor) -> Ask:
    """From raw features; of very many labels, as many as bound time and memory."""
    outside = none[spread_rows(none)]

    def ask(hidden: np.ndarray) -> PoolAsked:
        out = torch.from_numpy(hidden)
        taught, names, others = labeled[~out], labels[~out], torch.cat([pile, labeled[out]])
        rows = spread_rows(taught)
        return ask_pool(taught[rows], names[rows], others, classes, outside)

    return ask


def _by_person(labeled: Tensor, labels: Tensor, pile: Tensor, classes: int, none: Tensor) -> Ask:
    """The same by what a person has said about photos of the pile (`osp.photos.asking`)."""
    rows, outside = spread_rows(labeled), none[spread_rows(none)]
    layout = lay_out(torch.cat([labeled[rows], outside, pile]).numpy(), grouped=False)
    clusters = fit_clusters(labeled[rows], labels[rows], pile, classes, none=outside)
    others = np.repeat([NONE, OPEN], [len(outside), len(pile)])

    def ask(hidden: np.ndarray) -> PoolAsked:
        told = np.where(hidden, OPEN, labels.numpy())[rows.numpy()]
        return ask_person(layout, np.concatenate([told, others]), classes, clusters)

    return ask


def scores_of(asked: PoolAsked, features: Tensor) -> np.ndarray:
    """OOD scores of raw features, a few rows at a time."""
    return torch.cat([asked.score(part) for part in torch.split(features, _CHUNK)]).numpy()


def _held_out_scores(labeled: Tensor, folds: np.ndarray, ask: Ask) -> np.ndarray:
    """OOD scores of labeled images, those of a fold as if they lay unlabeled in the pile; 0 for those of no fold."""
    scores = np.zeros(len(labeled), np.float32)
    for fold in range(int(folds.max(initial=-1)) + 1):
        out = folds == fold
        scores[out] = scores_of(ask(out), labeled[torch.from_numpy(out)])
    return scores


def _held_out_distances(which: np.ndarray, rows: Tensor, labels: np.ndarray) -> np.ndarray:
    """Distances of labeled images to the nearest class, each as if it were not labeled."""
    classes = int(labels.max()) + 1
    members, sizes = by_class(rows, labels, classes)
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    length, scores = lengths(members, sizes), np.empty(len(which), np.float32)
    for place, (i, cosines) in enumerate(zip(which, products(rows[torch.from_numpy(which)], rows), strict=True)):
        others = torch.from_numpy(np.flatnonzero((labels == labels[i]) & (np.arange(len(labels)) != i)))
        mine = similarities(cosines[order][None], length, sizes)[0]
        mine[labels[i]] = similarity(cosines[others][None], lengths(rows[others], [len(others)])[0])[0]
        scores[place] = 1 - mine.max()
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


def _mean(pile: np.ndarray | FeatureRows, labeled: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of labels and pile; without a pile, of the classes' means, so that a large class does not hide the others."""
    if not len(pile):
        means = [np.asarray(labeled[labels == c], np.float64).mean(axis=0) for c in range(len(counts))]
        return np.asarray(np.mean(means, axis=0), np.float32)
    total = np.asarray(labeled, np.float64).sum(axis=0)
    for start in range(0, len(pile), _CHUNK):
        total += np.asarray(pile[start : start + _CHUNK], np.float64).sum(axis=0)
    return np.asarray(total / (len(labeled) + len(pile)), np.float32)


def _check(
    labeled: np.ndarray, labels: np.ndarray, pile: np.ndarray | FeatureRows, class_names: Sequence[str]
) -> np.ndarray:
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
