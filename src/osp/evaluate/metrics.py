"""Numbers from predictions, scores and features. OOD scores: larger = more OOD, everywhere."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """p_c = exp f_c / Σ_k exp f_k, along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def accuracy(logits: np.ndarray, targets: np.ndarray) -> float | None:
    """Percent of images whose largest logit is their class; None without images."""
    return float((logits.argmax(axis=1) == targets).mean() * 100) if len(targets) else None


def confusion_matrix(targets: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """How many images of each class (row) were given each class (column).

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    cells = np.bincount(targets.astype(np.int64) * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes)


def per_class_accuracy(matrix: np.ndarray) -> list[float | None]:
    """Percent of each class's images that were given it; None for a class without images.

    >>> per_class_accuracy(np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]]))
    [75.0, 100.0, None]
    """
    totals = matrix.sum(axis=1)
    return [
        float(100 * right / total) if total else None for right, total in zip(np.diagonal(matrix), totals, strict=True)
    ]


def balanced_accuracy(right: np.ndarray, targets: np.ndarray) -> float:
    """Mean over the classes that have images of the percentage of them that is right."""
    return float(np.mean([right[targets == c].mean() for c in np.unique(targets)]) * 100)


def open_balanced_accuracy(
    logits: np.ndarray, scores: np.ndarray, targets: np.ndarray, ood_scores: np.ndarray, threshold: float
) -> float | None:
    """The K+1-way balanced accuracy of the open-set papers (IOMatch); None where ID or OOD images are missing.

    It is the mean of the recalls of K classes and "none of them", the answer for a score above the threshold.

    >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> open_balanced_accuracy(logits, np.array([0, 9, 0]), np.array([0, 0, 1]), np.array([9, 0, 9, 9]), 5)
    75.0
    """
    if not len(targets) or not len(ood_scores):
        return None
    right = np.concatenate([(logits.argmax(axis=1) == targets) & ~(scores > threshold), ood_scores > threshold])
    return balanced_accuracy(right, np.concatenate([targets, np.full(len(ood_scores), logits.shape[1])]))


def expected_calibration_error(logits: np.ndarray, targets: np.ndarray, bins: int = 15) -> float | None:
    """Σ_b (n_b / n) |accuracy_b - confidence_b|, in percent points; None without images.

    Images are sorted by their largest probability into bins of equal width, (0, 1/15] and so on (Guo et al. 2017).
    """
    if not len(targets):
        return None
    confidence = softmax(logits.astype(np.float64)).max(axis=1)
    right = logits.argmax(axis=1) == targets
    members = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(members, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(targets) * 100)


def wilson_interval(percent: float, images: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share of so many images, such as an accuracy; all in percent. Of none: 0 to 100.

    >>> [round(bound, 2) for bound in wilson_interval(80.0, 100)]
    [71.12, 86.66]
    """
    if not images:
        return 0.0, 100.0
    share, z = percent / 100, NormalDist().inv_cdf((1 + confidence) / 2)
    middle = share + z * z / (2 * images)
    reach = z * math.sqrt(share * (1 - share) / images + (z / (2 * images)) ** 2)
    low, high = ((middle + side * reach) / (1 + z * z / images) for side in (-1, 1))
    return 100 * max(low, 0.0), 100 * min(high, 1.0)


def detection(id_scores: np.ndarray, ood_scores: np.ndarray) -> dict[str, float | None]:
    """How well scores tell OOD from ID images, in percent; None where one side is missing.

    auroc: probability that an OOD image scores above an ID image. aupr_id, aupr_ood: average precision with that side
    as the positive one. fpr95: share of OOD images accepted when the threshold accepts 95 % of the ID images.
    """
    if not len(id_scores) or not len(ood_scores):
        return {"auroc": None, "aupr_id": None, "aupr_ood": None, "fpr95": None}
    from sklearn.metrics import average_precision_score, roc_auc_score

    scores = np.concatenate([id_scores, ood_scores]).astype(np.float64)
    is_ood = np.concatenate([np.zeros(len(id_scores), bool), np.ones(len(ood_scores), bool)])
    return {
        "auroc": float(roc_auc_score(is_ood, scores) * 100),
        "aupr_id": float(average_precision_score(~is_ood, -scores) * 100),
        "aupr_ood": float(average_precision_score(is_ood, scores) * 100),
        "fpr95": fpr_at_95(id_scores, ood_scores),
    }


def fpr_at_95(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Percent of OOD images accepted at the lowest threshold that accepts at least 95 % of the ID images.

    >>> fpr_at_95(np.arange(100.0), np.array([50.0, 94.0, 95.0, 200.0]))  # 95 of 100 lie at or below 94
    50.0
    """
    needed = int(np.ceil(0.95 * len(id_scores)))
    threshold = np.sort(id_scores)[needed - 1]
    return float((ood_scores <= threshold).mean() * 100)


def partition_quality(kept: np.ndarray, is_ood: np.ndarray) -> dict[str, float | None]:
    """Purity: percent of ID among the kept images; recall: percent of the ID images that were kept."""
    is_id = ~is_ood
    return {
        "purity": float(is_id[kept].mean() * 100) if kept.any() else None,
        "recall": float(kept[is_id].mean() * 100) if is_id.any() else None,
    }


def mean_angle(id_features: np.ndarray, ood_features: np.ndarray, chunk: int = 1024) -> float | None:
    """Mean over all (ID, OOD) pairs of the angle between their features, in degrees; None without pairs.

    >>> round(mean_angle(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 3.0], [1.0, 1.0]])), 3)
    67.5
    """
    if not len(id_features) or not len(ood_features):
        return None
    left, right = unit_rows(id_features), unit_rows(ood_features)
    total = 0.0
    for first in range(0, len(left), chunk):
        cosines = np.clip(left[first : first + chunk] @ right.T, -1.0, 1.0)
        total += float(np.arccos(cosines).sum(dtype=np.float64))
    return float(np.degrees(total / (len(left) * len(right))))


def interclass_variance(features: np.ndarray, targets: np.ndarray) -> float | None:
    """Mean squared distance of the L2-normalized class means to their mean; None with fewer than two classes.

    >>> features = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
    >>> interclass_variance(features, np.array([0, 0, 1]))  # unit means (1, 0) and (0, 1), their mean (.5, .5)
    0.5
    """
    classes = np.unique(targets)
    if len(classes) < 2:
        return None
    means = unit_rows(np.stack([features[targets == c].mean(axis=0) for c in classes]))
    return float(((means - means.mean(axis=0)) ** 2).sum(axis=1).mean())


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows of length one, in the same directions."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit: np.ndarray = features / np.maximum(norms, 1e-12)
    return unit
