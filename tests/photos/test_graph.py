"""The torch form of the instant answer says what the numpy form says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from osp.photos.graph import InstantNet
from osp.photos.instant import Adapter, Instant, fit_instant


def fitted(pile: int) -> Instant:
    draws = np.random.default_rng(0)
    labels = np.arange(21) % 3
    rows = (np.eye(16)[labels] + draws.normal(size=(21, 16)) * 0.2).astype(np.float32)
    return fit_instant(rows, labels, draws.normal(size=(pile, 16)).astype(np.float32), ["a", "b", "c"])


@pytest.mark.parametrize("pile", [0, 60])
@pytest.mark.parametrize("adapted", [False, True])
def test_logits_and_scores_are_alike(pile: int, adapted: bool) -> None:
    draws = np.random.default_rng(1)
    instant = replace(fitted(pile), smoothing=0.5 if pile else 0.0)
    if adapted:
        down, bias, up = (draws.normal(size=shape).astype(np.float32) for shape in ((8, 16), (8,), (16, 8)))
        instant = replace(instant, adapter=Adapter(down, bias, up))
        assert np.abs(instant.logits(np.eye(16)) - fitted(pile).logits(np.eye(16))).max() > 0.1
    features = draws.normal(size=(30, 16)).astype(np.float32)
    logits, scores = InstantNet(instant)(torch.from_numpy(features))
    np.testing.assert_allclose(logits.numpy(), instant.logits(features), atol=1e-4)
    np.testing.assert_allclose(scores.numpy(), instant.ood_score(features), atol=1e-5)


def test_classes_of_labels_alone_beside_scores_of_the_pile_are_alike() -> None:
    instant, alone = fitted(60), fitted(0)
    both = replace(instant, smoothing=0.5).with_classes_of(alone)
    features = np.random.default_rng(1).normal(size=(30, 16)).astype(np.float32)
    logits, scores = InstantNet(both)(torch.from_numpy(features))
    for found in (logits.numpy(), both.logits(features)):
        np.testing.assert_allclose(found, alone.logits(features), atol=1e-4)
    for found in (scores.numpy(), both.ood_score(features)):
        np.testing.assert_allclose(found, instant.ood_score(features), atol=1e-5)
    assert np.abs(alone.logits(features) - instant.logits(features)).max() > 0.1
