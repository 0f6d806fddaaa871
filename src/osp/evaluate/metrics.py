"""Numbers from predictions, scores and features. OOD scores: larger = more OOD, everywhere."""

from __future__ import annotations

import numpy as np


def accuracy(logits: np.ndarray, targets: np.ndarray) -> float | None:
    """Percent of images whose largest logit is their class; None without images."""
    return float((logits.argmax(axis=1) == targets).mean() * 100) if len(targets) else None


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
    left, right = _unit_rows(id_features), _unit_rows(ood_features)
    total = 0.0
    for first in range(0, len(left), chunk):
        cosines = np.clip(left[first : first + chunk] @ right.T, -1.0, 1.0)
        total += float(np.arccos(cosines).sum(dtype=np.float64))
    return float(np.degrees(total / (len(left) * len(right))))


def interclass_variance(features: np.ndarray, targets: np.ndarray) -> float | None:
    """Mean squared distance of the L2-normalised class means to their mean; None with fewer than two classes.

    >>> features = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
    >>> interclass_variance(features, np.array([0, 0, 1]))  # unit means (1, 0) and (0, 1), their mean (.5, .5)
    0.5
    """
    classes = np.unique(targets)
    if len(classes) < 2:
        return None
    means = _unit_rows(np.stack([features[targets == c].mean(axis=0) for c in classes]))
    return float(((means - means.mean(axis=0)) ** 2).sum(axis=1).mean())


def _unit_rows(features: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit: np.ndarray = features / np.maximum(norms, 1e-12)
    return unit
