"""OOD scores against loops and hand-worked values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from osp.parts.scores import MahalanobisScore, NearestScore, energy_score, max_logit_score, post_hoc_score

NONE = torch.zeros(0)


def clusters() -> tuple[Tensor, Tensor]:
    """Two classes, long in the first direction and thin in the second."""
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 2, generator=draws) * torch.tensor([3.0, 0.1])
    labels = torch.arange(200) % 2
    return noise + torch.tensor([[0.0, 0.0], [0.0, 5.0]])[labels], labels


def test_energy_and_logit_are_as_written() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    expected = [-math.log(math.exp(1) + math.exp(2) + math.exp(-1)), -math.log(3)]
    assert energy_score(logits).tolist() == pytest.approx(expected)
    assert max_logit_score(logits).tolist() == [-2.0, -0.0]


def test_the_nearest_score_is_the_distance_to_the_kth_neighbour() -> None:
    known, labels = clusters()
    asked = torch.randn(7, 2, generator=torch.Generator().manual_seed(1))
    score = NearestScore(2, k=3)
    score.fit(known, labels)
    for row, found in zip(asked, score(asked, NONE), strict=True):
        distances = sorted((row / row.norm() - other / other.norm()).norm().item() for other in known)
        assert found.item() == pytest.approx(distances[2], abs=1e-3)


def test_few_labels_are_enough_for_the_nearest_score() -> None:
    score = NearestScore(2, k=50)
    score.fit(torch.eye(2), torch.tensor([0, 1]))
    assert score(torch.tensor([[1.0, 0.0]]), NONE).item() == pytest.approx(math.sqrt(2), abs=1e-5)


def test_mahalanobis_counts_distance_in_units_of_the_spread() -> None:
    known, labels = clusters()
    score = MahalanobisScore(2, 2)
    score.fit(known, labels)
    along, across = score(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), NONE).tolist()
    assert along == pytest.approx(1.0, abs=0.5)  # one standard deviation along the long direction
    assert across > 10  # many across the thin one, a third of the length


def test_mahalanobis_stands_fewer_labels_than_features() -> None:
    draws = torch.Generator().manual_seed(2)
    score = MahalanobisScore(64, 3)
    features, labels = torch.randn(9, 64, generator=draws), torch.arange(9) % 3
    score.fit(features + 4 * torch.eye(64)[labels], labels)
    inside = score(4 * torch.eye(64)[labels], NONE)
    outside = score(torch.randn(20, 64, generator=draws) * 5, NONE)
    assert inside.isfinite().all()
    assert outside.min() > inside.max()


@pytest.mark.parametrize("name", ["softmax", "logit", "energy", "knn", "mahalanobis"])
def test_every_score_is_larger_for_a_foreign_image(name: str) -> None:
    known, labels = clusters()
    known = known + torch.tensor([20.0, 0.0])
    score = post_hoc_score(name, 2, 2)
    if isinstance(score, NearestScore | MahalanobisScore):
        score.fit(known, labels)
    features = torch.tensor([[20.0, 5.0], [-20.0, 30.0]])
    logits = torch.tensor([[0.0, 9.0], [1.0, 1.2]])
    familiar, foreign = score(features, logits).tolist()
    assert foreign > familiar
