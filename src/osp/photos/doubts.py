"""What a person should look at: labels that look wrong, and the images most worth labeling next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from osp.models.instant import FeatureRows, Instant, lengths, products, similarity, tensor

LOOK_AT = 5
"""Nearest labeled images that all have to say otherwise."""


@dataclass(frozen=True)
class WrongLabel:
    """A labeled image that looks like another class."""

    position: int
    """Among the labeled images."""
    label: int
    suggestion: int
    margin: float
    """How much more similar to the suggested class than to the rest of its own, as a cosine."""


def wrong_labels(instant: Instant) -> list[WrongLabel]:
    """Labeled images of which, taken out, none of the nearest has the label and another class is more similar.

    The second condition compares whole classes, so that a small class among large ones is not suspected because most
    images are of the others. Needs two images of a class; most suspicious first.
    """
    rows, labels = tensor(instant.labeled), instant.labels
    classes = len(instant.class_names)
    found = []
    for i, cosines in enumerate(products(rows, rows)):
        cosines[i] = -torch.inf
        near = cosines.topk(min(LOOK_AT, len(rows) - 1)).indices.numpy()
        if (labels[near] == labels[i]).any():
            continue
        others = [np.flatnonzero((labels == c) & (np.arange(len(rows)) != i)) for c in range(classes)]
        if not len(others[labels[i]]):
            continue
        alike = [
            float(similarity(cosines[each][None], lengths(rows[each], [len(each)])[0]))
            for each in map(torch.from_numpy, others)
        ]
        best = int(np.argmax(alike))
        if best != labels[i]:
            margin = alike[best] - alike[labels[i]]
            found.append(WrongLabel(i, int(labels[i]), best, margin))
    return sorted(found, key=lambda wrong: -wrong.margin)


@dataclass(frozen=True)
class WorthLabeling:
    """An image of the pile whose label would tell most."""

    position: int
    """In the pile."""
    reason: str


def next_to_label(
    instant: Instant, pile: np.ndarray | FeatureRows, count: int, accept: float = 0.95
) -> list[WorthLabeling]:
    """The images of the pile (raw features) most worth labeling: doubtful, and unlike each other.

    There are two doubts, asked for in turn: between two classes, 1 - (p1 - p2) for images that belong; and whether an
    image belongs at all, 1 - |s - t| / spread of s, at the threshold t of the OOD score s. Images are taken greedily by
    doubt times the distance (1 - cosine) to the nearest one taken so far, so that twins and bursts are asked for once.
    """
    if not len(pile) or count < 1:
        return []
    probabilities, scores = instant.answer(pile)
    limit = instant.threshold(accept)
    order = np.argsort(-probabilities, axis=1)
    top = np.take_along_axis(probabilities, order[:, :2], axis=1)
    between = np.where(scores <= limit, 1 - (top[:, 0] - top[:, 1]), 0.0)
    spread = max(float(scores.std()), 1e-6)
    border = np.clip(1 - np.abs(scores - limit) / spread, 0.0, 1.0) if np.isfinite(limit) else np.zeros(len(pile))
    most = max(10 * count, 500)
    candidates = np.unique(np.concatenate([np.argsort(-doubt, kind="stable")[:most] for doubt in (between, border)]))
    rows = instant.center(pile[candidates])
    apart = np.ones(len(candidates))
    chosen: list[WorthLabeling] = []
    while len(chosen) < min(count, len(candidates)):
        values = [doubt[candidates] * apart for doubt in (between, border)]
        kind = len(chosen) % 2 if min(value.max() for value in values) > 1e-6 else int(values[1].max() > 1e-6)
        best = int(values[kind].argmax())
        if values[kind][best] <= 1e-6:
            break
        i = int(candidates[best])
        first, second = (instant.class_names[c] for c in order[i, :2])
        if kind == 0:
            reason = f"{first} or {second}? ({100 * top[i, 0]:.0f} % and {100 * top[i, 1]:.0f} %)"
        else:
            reason = f"{first} or none of the classes? (OOD score {scores[i]:.2f}, threshold {limit:.2f})"
        chosen.append(WorthLabeling(i, reason))
        apart = np.minimum(apart, np.clip(1 - rows @ rows[best], 0.0, 1.0))
        apart[best] = 0.0
    return chosen
