"""The instant answer's logits and scores are what its formulas say, worked image by image."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from osp.models.instant import Adapter, Instant
from osp.photos.instant import fit_instant


def fitted(pile: int) -> Instant:
    draws = np.random.default_rng(0)
    labels = np.arange(21) % 3
    rows = (np.eye(16)[labels] + draws.normal(size=(21, 16)) * 0.2).astype(np.float32)
    return fit_instant(rows, labels, draws.normal(size=(pile, 16)).astype(np.float32), ["a", "b", "c"])


def by_hand(instant: Instant, feature: np.ndarray) -> tuple[np.ndarray, float]:
    """Logits and OOD score of one image."""
    z = (feature - instant.mean) / np.linalg.norm(feature - instant.mean)
    alike = []
    for number in range(len(instant.class_names)):
        members = instant.labeled[instant.labels == number]
        mean = members.sum(axis=0) / np.linalg.norm(members.sum(axis=0))
        alike.append((z @ mean + np.mean(sorted(members @ z)[-5:])) / 2)
    score = 1 - max(alike)
    if instant.asked is not None:
        score = float(instant.asked.score(torch.from_numpy(feature)[None]))
    if instant.neighbors:
        near = np.argsort(-(instant.references @ z))[: instant.neighbors]
        if instant.asked is None:
            score = np.mean([score, *instant.reference_scores[near]])
        z = (1 - instant.smoothing) * z + instant.smoothing * instant.references[near].mean(axis=0)
    if instant.adapter is not None:
        z = z + instant.adapter.up @ np.maximum(instant.adapter.down @ z + instant.adapter.bias, 0)
    return instant.weight @ z + instant.bias, float(score)


@pytest.mark.parametrize(("pile", "asked"), [(0, False), (60, True), (60, False)])
@pytest.mark.parametrize("adapted", [False, True])
def test_logits_and_scores_are_those_of_the_formulas(pile: int, asked: bool, adapted: bool) -> None:
    draws = np.random.default_rng(1)
    instant = replace(fitted(pile), smoothing=0.5 if pile else 0.0)
    assert (instant.asked is not None) == (pile > 0)
    if not asked:  # as in fits of version 0.1
        instant = replace(instant, asked=None)
    if adapted:
        down, bias, up = (draws.normal(size=shape).astype(np.float32) for shape in ((8, 16), (8,), (16, 8)))
        instant = replace(instant, adapter=Adapter(down, bias, up))
    features = draws.normal(size=(30, 16)).astype(np.float32)
    logits, scores = zip(*(by_hand(instant, feature) for feature in features), strict=True)
    np.testing.assert_allclose(instant.logits(features), logits, atol=1e-4)
    probabilities, found = instant.answer(features)
    np.testing.assert_allclose(found, scores, atol=1e-5)
    powers = np.exp(np.array(logits) / instant.temperature)
    np.testing.assert_allclose(probabilities, powers / powers.sum(axis=1, keepdims=True), atol=1e-3)


def test_classes_of_labels_alone_beside_scores_of_the_pile() -> None:
    instant, alone = fitted(60), fitted(0)
    both = replace(instant, smoothing=0.5).with_classes_of(alone)
    features = np.random.default_rng(1).normal(size=(30, 16)).astype(np.float32)
    np.testing.assert_allclose(both.logits(features), alone.logits(features), atol=1e-4)
    np.testing.assert_allclose(both.ood_score(features), instant.ood_score(features), atol=1e-5)
    assert np.abs(alone.logits(features) - instant.logits(features)).max() > 0.1


def test_many_rows_and_none_are_answered_like_one_and_a_pickle_does_not_carry_what_answers() -> None:
    instant = fitted(60)
    features = np.random.default_rng(1).normal(size=(1100, 16)).astype(np.float16)
    before = len(pickle.dumps(instant))
    scores = instant.ood_score(features)
    np.testing.assert_allclose(scores[-1:], instant.ood_score(features[-1:]), atol=1e-5)
    assert instant.predict_proba(features[:0]).shape == (0, 3)
    assert len(pickle.dumps(instant)) == before
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(instant)).ood_score(features), scores)
