"""Metrics against slow loops and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]
from sklearn.metrics import average_precision_score, balanced_accuracy_score, recall_score, roc_auc_score
from sklearn.metrics import confusion_matrix as sklearn_confusion_matrix

from osp.evaluate.metrics import (
    accuracy,
    balanced_accuracy,
    confusion_matrix,
    detection,
    expected_calibration_error,
    fpr_at_95,
    interclass_variance,
    mean_angle,
    open_balanced_accuracy,
    partition_quality,
    per_class_accuracy,
    wilson_interval,
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


# Classes one by one

pairs_of_classes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


@given(pairs_of_classes)
def test_confusion_and_accuracy_per_class_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    targets, predicted = np.array(pairs).T
    matrix = confusion_matrix(targets, predicted, 5)
    assert (matrix == sklearn_confusion_matrix(targets, predicted, labels=range(5))).all()
    recalls = recall_score(targets, predicted, labels=range(5), average=None, zero_division=np.nan)
    assert per_class_accuracy(matrix) == pytest.approx([None if np.isnan(each) else 100 * each for each in recalls])
    present = np.isin(predicted, targets)  # scikit-learn warns of predicted classes without images, and of one class
    if present.all() and len(np.unique(targets)) > 1:
        found = balanced_accuracy(predicted == targets, targets)
        assert found == pytest.approx(100 * balanced_accuracy_score(targets, predicted))


def test_none_of_the_classes_is_one_group_more() -> None:
    """Two classes, worked by hand: at the threshold itself an image still passes."""
    logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    scores = np.array([0.5, 0.6, 0.1, 0.2])
    targets = np.array([0, 0, 1, 1])
    ood_scores = np.array([0.3, 0.9, 0.7])
    found = open_balanced_accuracy(
        logits, scores, targets, ood_scores, 0.5
    )  # given 0, none, 1, 0 and a class, none, none
    assert found == pytest.approx((50 + 50 + 200 / 3) / 3)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.9))
def test_the_open_balanced_accuracy_is_that_of_scikit_learn_with_one_class_more(seed: int, threshold: float) -> None:
    draws = np.random.default_rng(seed)
    logits, ood_logits = draws.normal(size=(50, 4)), draws.normal(size=(20, 4))
    scores, ood_scores, targets = draws.random(50), draws.random(20), np.arange(50) % 4
    found = open_balanced_accuracy(logits, scores, targets, ood_scores, threshold)
    truth = [*targets, *[4] * 20]
    all_logits, all_scores = np.concatenate([logits, ood_logits]), np.concatenate([scores, ood_scores])
    answers = [4 if score > threshold else int(row.argmax()) for row, score in zip(all_logits, all_scores, strict=True)]
    assert found == pytest.approx(100 * balanced_accuracy_score(truth, answers))


def test_without_images_of_one_side_there_is_no_open_balanced_accuracy() -> None:
    logits, scores, targets = np.eye(2), np.zeros(2), np.arange(2)
    assert open_balanced_accuracy(logits, scores, targets, np.zeros(0), 0.5) is None
    assert open_balanced_accuracy(np.zeros((0, 2)), np.zeros(0), np.zeros(0, np.int64), scores, 0.5) is None


# Confidence


def test_the_calibration_error_by_hand() -> None:
    """Three images at 60 % of which one is right, one at 90 % that is right: (3 |1/3 - 0.6| + |1 - 0.9|) / 4."""
    probabilities = np.array([[0.6, 0.4], [0.6, 0.4], [0.4, 0.6], [0.9, 0.1]])
    found = expected_calibration_error(np.log(probabilities), np.array([0, 1, 0, 0]))
    assert found == pytest.approx(100 * (3 * abs(1 / 3 - 0.6) + 0.1) / 4)
    assert expected_calibration_error(np.zeros((0, 2)), np.zeros(0, np.int64)) is None


@given(st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_the_calibration_error_is_that_of_a_loop_over_bins(seed: int, bins: int) -> None:
    draws = np.random.default_rng(seed)
    logits, targets = 3 * draws.normal(size=(80, 3)), draws.integers(0, 3, 80)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == targets
    expected = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(logits, targets, bins) == pytest.approx(100 * expected, abs=1e-9)


def test_huge_logits_do_not_overflow() -> None:
    assert expected_calibration_error(np.array([[1e30, 0.0]], np.float32), np.array([0])) == 0.0


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.95]))
def test_wilsons_interval_is_that_of_scipy(counts: tuple[int, int], confidence: float) -> None:
    right, images = counts
    expected = binomtest(right, images).proportion_ci(confidence, method="wilson")
    found = wilson_interval(100 * right / images, images, confidence)
    assert found == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-6)


def test_nothing_is_known_of_no_images() -> None:
    assert wilson_interval(50.0, 0) == (0.0, 100.0)
