"""Temperatures and quantiles are what their definitions say, and few images are no certainty."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osp.evaluate.metrics import softmax
from osp.evaluate.thresholds import fit_temperature, weighted_quantile


def test_temperature_recovers_the_scale_of_logits() -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=(20_000, 3)) * 2
    labels = np.array([random.choice(3, p=row) for row in softmax(true)])
    assert fit_temperature(true * 4, labels, np.ones(20_000)) == pytest.approx(4, rel=0.1)


def test_few_images_without_a_mistake_are_no_certainty() -> None:
    logits = np.array([[1.0, 0.0], [0.0, 1.0]] * 4)
    probability = softmax(logits / fit_temperature(logits, np.array([0, 1] * 4), np.ones(8))).max()
    assert 0.85 < probability < 0.99


def test_weighted_quantile_agrees_with_repeating_values() -> None:
    random = np.random.default_rng(0)
    values, weights = random.normal(size=40), random.integers(1, 6, 40)
    repeated = np.sort(np.repeat(values, weights))
    for share in (0.1, 0.5, 0.95, 0.99):
        assert weighted_quantile(values, weights, share) == repeated[math.ceil(share * len(repeated)) - 1]
