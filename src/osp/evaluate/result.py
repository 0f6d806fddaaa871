"""The numbers of `result.json`, from predictions alone; null where there is nothing to measure, never NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from osp.evaluate.metrics import (
    accuracy,
    confusion_matrix,
    detection,
    expected_calibration_error,
    interclass_variance,
    mean_angle,
    open_balanced_accuracy,
    partition_quality,
    per_class_accuracy,
)
from osp.evaluate.predictions import Group, Predictions

OWN_GROUPS = ("test", "test_ood", "validation", "labeled")


def measure(predictions: Predictions, truth: np.ndarray | None) -> dict[str, Any]:
    """Accuracy, detection by the reported score and by 1 - max softmax, the partition, the geometry of the features.

    `truth` says which pool images are OOD; None where that is not known.
    """
    test, test_ood, score = predictions.groups["test"], predictions.groups["test_ood"], predictions.score
    reported = detection(test.scores[score], test_ood.scores[score])
    assert test.targets is not None
    numbers: dict[str, float | None] = {
        "accuracy": accuracy(test.logits, test.targets),
        "auroc": reported["auroc"],
        "msp_auroc": detection(test.scores["softmax"], test_ood.scores["softmax"])["auroc"],
        "pool_auroc": None,
        "aupr_id": reported["aupr_id"],
        "aupr_ood": reported["aupr_ood"],
        "fpr95": reported["fpr95"],
        "open_accuracy": open_balanced_accuracy(
            test.logits, test.scores[score], test.targets, test_ood.scores[score], predictions.threshold
        ),
        "calibration_error": expected_calibration_error(test.logits, test.targets),
        "purity": None,
        "recall": None,
        "angle": mean_angle(test.features, test_ood.features),
        "interclass_variance": interclass_variance(test.features, test.targets),
    }
    pool = predictions.pool
    if truth is not None:
        scores = pool.scores[score]
        numbers["pool_auroc"] = detection(scores[~truth], scores[truth])["auroc"]
        if pool.kept is not None:
            numbers |= partition_quality(pool.kept, truth)
    matrix = confusion_matrix(test.targets, test.predicted, test.logits.shape[1])
    others = {name.removeprefix("ood:"): group for name, group in predictions.groups.items() if name not in OWN_GROUPS}
    by_set = {name: _by_score(test, group) for name, group in others.items()}
    held = predictions.group("validation")
    return {
        **{key: _rounded(value) for key, value in numbers.items()},
        "confusion": matrix.tolist(),
        "class_accuracy": [_rounded(each) for each in per_class_accuracy(matrix)],
        "score": score,
        "scores": _by_score(test, test_ood),
        "other_ood": {name: {**found[score], "scores": found} for name, found in by_set.items()},
        "val_accuracy": None if held is None or held.targets is None else _rounded(accuracy(held.logits, held.targets)),
        "threshold": predictions.threshold,
        "test_images": len(test),
    }


def _by_score(test: Group, ood: Group) -> dict[str, dict[str, float | None]]:
    found = {name: detection(test.scores[name], ood.scores[name]) for name in test.scores}
    return {name: {key: _rounded(each[key]) for key in ("auroc", "fpr95")} for name, each in found.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 4)
