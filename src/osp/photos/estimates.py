"""How good a classifier is and how sure it may be, from logits of labelled images that were held out in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from osp.evaluate.metrics import detection, expected_calibration_error, wilson_interval

FOLDS = 5


@dataclass(frozen=True)
class Estimate:
    """How good the classifier is, by cross-validation on the labelled images; percent where not said otherwise."""

    images: int
    """Labelled images that were held out once: the interval is wide where these are few."""
    correct: int
    accuracy: float
    low: float
    high: float
    """95 % interval of the accuracy (Wilson)."""
    balanced_accuracy: float
    """Mean over the classes of their accuracy, whatever their sizes."""
    ece: float
    """Expected calibration error of the probabilities, the temperature taken from other images."""


def folds_of(labels: np.ndarray, counts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The fold in which each image is held out; -1 for the only image of its class.

    A fold takes from all classes alike: leaving out single images weakens just the class that is asked for, which at
    five labels per class makes the estimate ten points too low.
    """
    folds = np.full(len(labels), -1)
    for c in np.flatnonzero(counts > 1):
        members = generator.permutation(np.flatnonzero(labels == c))
        folds[members] = np.arange(len(members)) % FOLDS
    return folds


def fit_temperature(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """The temperature with the least log loss. Targets keep 1/(n + 2) back, so that no mistake among few images is not
    taken for certainty (after Platt)."""
    candidates = np.geomspace(0.02, 50, 120)
    kept_back = 1 / (len(labels) + 2)
    losses = [log_loss(logits / t, labels, weights, kept_back) for t in candidates]
    return float(candidates[int(np.argmin(losses))])


def log_loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, kept_back: float = 0.0) -> float:
    logs = logits - logits.max(axis=1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
    right = logs[np.arange(len(labels)), labels]
    loss = -(1 - kept_back) * right - kept_back * logs.mean(axis=1)
    return float((weights * loss).sum() / weights.sum())


def estimate_of(
    logits: np.ndarray, labels: np.ndarray, folds: np.ndarray, balance: np.ndarray, classes: int
) -> Estimate:
    held = np.flatnonzero(folds >= 0)
    right = logits.argmax(axis=1) == labels
    per_class = [right[held][labels[held] == c].mean() for c in range(classes) if (labels[held] == c).any()]
    calibrated = np.empty((len(held), classes))
    for part in range(2):  # the temperature of one half comes from the other
        use, rest = held[part::2], held[1 - part :: 2]
        temperature = fit_temperature(logits[rest], labels[rest], balance[rest])
        calibrated[part::2] = logits[use] / temperature
    accuracy = float(right[held].mean() * 100)
    low, high = wilson_interval(accuracy, len(held))
    return Estimate(
        images=len(held),
        correct=int(right[held].sum()),
        accuracy=accuracy,
        low=low,
        high=high,
        balanced_accuracy=float(np.mean(per_class) * 100),
        ece=expected_calibration_error(calibrated, labels[held]) or 0.0,
    )


def tested(predicted: np.ndarray, truth: np.ndarray, scores: np.ndarray, limit: float) -> dict[str, Any]:
    """Figures on test images, of which those of no known class have the truth -1: how many of the others are named
    rightly, and how well those are told from them by OOD score and threshold."""
    known = truth >= 0
    right, classes = predicted[known] == truth[known], truth[known]
    accuracy = float(right.mean() * 100)
    low, high = wilson_interval(accuracy, len(right))
    found: dict[str, Any] = {
        "images": len(right),
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "balanced_accuracy": float(np.mean([right[classes == c].mean() for c in np.unique(classes)]) * 100),
        "known_accepted": float((scores[known] <= limit).mean() * 100),
    }
    if not known.all():
        found["foreign"] = int((~known).sum())
        found["foreign_accepted"] = float((scores[~known] <= limit).mean() * 100)
        found["auroc"] = detection(scores[known], scores[~known])["auroc"]
    return found


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value up to which at least this share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.75)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order].astype(np.float64))
    place = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-9)))
    return float(values[order][min(place, len(values) - 1)])
