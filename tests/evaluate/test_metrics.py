"""Metrics against slow loops and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from osp.evaluate.metrics import (
    accuracy,
    detection,
    fpr_at_95,
    interclass_variance,
    mean_angle,
    partition_quality,
)

scores = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=40)  # few values: ties matter


@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_the_right_order(id_scores: list[float], ood_scores: list[float]) -> None:
    pairs = [1.0 if ood > inside else 0.5 if ood == inside else 0.0 for ood in ood_scores for inside in id_scores]
    found = detection(np.array(id_scores), np.array(ood_scores))
    assert found["auroc"] == pytest.approx(100 * sum(pairs) / len(pairs))


@given(scores, scores)
def test_precisions_have_each_side_as_the_positive_one(id_scores: list[float], ood_scores: list[float]) -> None:
    both = np.array(id_scores + ood_scores)
    is_ood = np.array([0] * len(id_scores) + [1] * len(ood_scores))
    found = detection(np.array(id_scores), np.array(ood_scores))
    assert found["aupr_ood"] == pytest.approx(100 * average_precision_score(is_ood, both))
    assert found["aupr_id"] == pytest.approx(100 * average_precision_score(1 - is_ood, -both))
    assert found["auroc"] == pytest.approx(100 * roc_auc_score(is_ood, both))


@given(scores, scores)
def test_fpr95_is_the_least_ood_accepted_by_a_threshold_that_accepts_95_percent(
    id_scores: list[float], ood_scores: list[float]
) -> None:
    allowed = [
        sum(ood <= threshold for ood in ood_scores) / len(ood_scores)
        for threshold in id_scores
        if sum(inside <= threshold for inside in id_scores) >= 0.95 * len(id_scores)
    ]
    assert fpr_at_95(np.array(id_scores), np.array(ood_scores)) == pytest.approx(100 * min(allowed))


def test_larger_scores_mean_more_ood() -> None:
    perfect = detection(np.array([0.1, 0.2]), np.array([0.8, 0.9]))
    assert perfect == {"auroc": 100.0, "aupr_id": 100.0, "aupr_ood": 100.0, "fpr95": 0.0}
    reversed_ = detection(np.array([0.8, 0.9]), np.array([0.1, 0.2]))
    assert (reversed_["auroc"], reversed_["fpr95"]) == (0.0, 100.0)


def test_where_a_side_is_missing_nothing_is_claimed() -> None:
    none, some = np.zeros(0), np.ones(3)
    for id_scores, ood_scores in ((none, some), (some, none), (none, none)):
        assert set(detection(id_scores, ood_scores).values()) == {None}
    assert accuracy(np.zeros((0, 3)), np.zeros(0, np.int64)) is None
    assert mean_angle(np.zeros((0, 2)), np.ones((3, 2))) is None
    assert mean_angle(np.ones((3, 2)), np.zeros((0, 2))) is None
    assert interclass_variance(np.ones((4, 2)), np.zeros(4, np.int64)) is None


def test_accuracy_is_the_percent_of_largest_logits_at_the_class() -> None:
    logits = np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [5.0, 4.0]])
    assert accuracy(logits, np.array([1, 0, 0, 1])) == 50.0


def test_purity_and_recall_equal_a_slow_count() -> None:
    rng = np.random.default_rng(0)
    kept, is_ood = rng.random(200) < 0.3, rng.random(200) < 0.6
    both = sum(1 for k, o in zip(kept, is_ood, strict=True) if k and not o)
    found = partition_quality(kept, is_ood)
    assert found["purity"] == pytest.approx(100 * both / sum(kept))
    assert found["recall"] == pytest.approx(100 * both / sum(~is_ood))
    assert partition_quality(np.zeros(3, bool), np.array([True, False, False])) == {"purity": None, "recall": 0.0}
    assert partition_quality(np.ones(2, bool), np.ones(2, bool)) == {"purity": 0.0, "recall": None}


def test_the_angle_is_the_mean_over_all_pairs() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(size=(7, 5)).astype(np.float32), rng.normal(size=(4, 5)).astype(np.float32)
    angles = [
        math.degrees(math.acos(float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)))) for a in inside for b in outside
    ]
    for chunk in (1, 3, 1024):
        assert mean_angle(inside, outside, chunk) == pytest.approx(sum(angles) / len(angles), rel=1e-5)


def test_equal_and_zero_features_give_a_number() -> None:
    same = np.full((3, 4), 0.1, np.float32)
    assert mean_angle(same, same) == pytest.approx(0.0, abs=0.05)
    assert mean_angle(np.zeros((2, 4)), same) == pytest.approx(90.0)
    assert interclass_variance(np.zeros((2, 4)), np.array([0, 1])) == 0.0


def test_interclass_variance_equals_a_slow_loop() -> None:
    rng = np.random.default_rng(2)
    features, targets = rng.normal(size=(30, 4)), rng.integers(0, 3, 30)
    means = []
    for c in range(3):
        mean = sum(f for f, t in zip(features, targets, strict=True) if t == c) / (targets == c).sum()
        means.append(mean / np.linalg.norm(mean))
    centre = sum(means) / 3
    expected = sum(float(((mean - centre) ** 2).sum()) for mean in means) / 3
    assert interclass_variance(features, targets) == pytest.approx(expected)
