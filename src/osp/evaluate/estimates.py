"""How good a classifier is and how sure it may be, from logits of labeled images that were held out in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from osp.evaluate.metrics import balanced_accuracy, detection, expected_calibration_error, wilson_interval
from osp.evaluate.thresholds import fit_temperature

FOLDS = 5


@dataclass(frozen=True)
class Estimate:
    """How good the classifier is, by cross-validation on the labeled images; percent where not said otherwise."""

    images: int
    """Labeled images that were held out once: the interval is wide where these are few."""
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


def estimate_of(
    logits: np.ndarray, labels: np.ndarray, folds: np.ndarray, balance: np.ndarray, classes: int
) -> Estimate:
    held = np.flatnonzero(folds >= 0)
    right = (logits.argmax(axis=1) == labels)[held]
    calibrated = np.empty((len(held), classes))
    for part in range(2):  # the temperature of one half comes from the other
        use, rest = held[part::2], held[1 - part :: 2]
        temperature = fit_temperature(logits[rest], labels[rest], balance[rest])
        calibrated[part::2] = logits[use] / temperature
    ece = expected_calibration_error(calibrated, labels[held]) or 0.0
    return Estimate(**_figures(right, labels[held]), correct=int(right.sum()), ece=ece)


def tested(predicted: np.ndarray, truth: np.ndarray, scores: np.ndarray, limit: float) -> dict[str, Any]:
    """Figures on test images, of which those of no known class have the truth -1: how many of the others are named
    rightly, and how well OOD score and threshold separate the two."""
    known = truth >= 0
    found = _figures(predicted[known] == truth[known], truth[known])
    found["known_accepted"] = float((scores[known] <= limit).mean() * 100)
    if not known.all():
        found["foreign"] = int((~known).sum())
        found["foreign_accepted"] = float((scores[~known] <= limit).mean() * 100)
        found["auroc"] = detection(scores[known], scores[~known])["auroc"]
    return found


def _figures(right: np.ndarray, classes: np.ndarray) -> dict[str, Any]:
    """Of images that are named rightly or not."""
    accuracy = float(right.mean() * 100)
    low, high = wilson_interval(accuracy, len(right))
    balanced = balanced_accuracy(right, classes)
    return {"images": len(right), "accuracy": accuracy, "low": low, "high": high, "balanced_accuracy": balanced}
