"""The score by labeled neighbors against loops, and on clusters where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from osp.parts.neighbors import fit_neighbors, principal_directions


def cluster(center: int, n: int, seed: int, dim: int = 12, width: float = 0.1) -> Tensor:
    noise = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return torch.eye(dim)[center] + width * noise


def nearest(point: np.ndarray, nodes: np.ndarray, k: int) -> list[int]:
    cosines = [float(point @ node / np.linalg.norm(point) / np.linalg.norm(node)) for node in nodes]
    return sorted(range(len(nodes)), key=lambda i: -cosines[i])[:k]


def test_the_score_equals_a_loop_over_images_and_neighbors() -> None:
    draws = torch.Generator().manual_seed(0)
    labeled, references, asked = (torch.randn(n, 6, generator=draws) for n in (5, 30, 9))
    score = fit_neighbors(labeled, references, k=4, rounds=3)
    nodes = torch.cat([labeled, references]).double().numpy()
    unit = nodes / np.linalg.norm(nodes, axis=1, keepdims=True)
    values = [0.0 if i < 5 else 1 - max(float(unit[i] @ unit[j]) for j in range(5)) for i in range(35)]
    for _ in range(3):
        values = [float(np.mean([values[j] for j in nearest(nodes[i], nodes, 4)])) for i in range(35)]
        values = [0.0 if i < 5 else values[i] for i in range(35)]
    expected = [float(np.mean([values[j] for j in nearest(point, nodes, 4)])) for point in asked.double().numpy()]
    assert score.score(asked).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("dim", [4, 64])
def test_a_cluster_without_labeled_members_is_foreign(dim: int) -> None:
    references = torch.cat([cluster(0, 60, 1), cluster(1, 60, 2), cluster(2, 60, 3)])
    score = fit_neighbors(torch.cat([cluster(0, 5, 4), cluster(1, 5, 5)]), references, dim=dim)
    known = score.score(torch.cat([cluster(0, 20, 6), cluster(1, 20, 7)]))
    foreign = score.score(cluster(2, 20, 8))
    assert known.max() < 0.5 * foreign.min()


def test_a_chain_of_neighbors_carries_the_label_along() -> None:
    """Points on an arc, labeled at one end only: its far end is nearer than a lone cluster as far off."""
    angles = torch.linspace(0, torch.pi / 2, 60)
    arc = torch.stack([angles.cos(), angles.sin(), torch.zeros(60)], dim=1)
    apart = torch.tensor([[0.0, 0.0, 1.0]]) + 0.02 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    score = fit_neighbors(arc[:3], torch.cat([arc[3:], apart]), rounds=200)
    assert score.score(arc[-3:]).max() < 0.8 * score.score(apart).min()


def test_the_length_of_features_does_not_matter() -> None:
    labeled, references = cluster(0, 5, 1), torch.cat([cluster(0, 30, 2), cluster(2, 30, 3)])
    score = fit_neighbors(labeled, references)
    scaled = fit_neighbors(100 * labeled, 0.01 * references)
    torch.testing.assert_close(score.score(references), scaled.score(7 * references), rtol=1e-3, atol=1e-4)


def test_fewer_images_than_neighbors_and_vanishing_features_give_numbers() -> None:
    score = fit_neighbors(torch.zeros(1, 4), torch.zeros(2, 4), k=10)
    assert score.score(torch.zeros(3, 4)).isfinite().all()
    assert score.score(torch.empty(0, 4)).shape == (0,)


def test_directions_span_what_the_singular_vectors_span() -> None:
    features = torch.randn(200, 20, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -2, 20)
    found = principal_directions(features, 5)
    assert found.shape == (20, 5)
    vectors = np.linalg.svd(features.numpy(), full_matrices=False)[2][:5]
    np.testing.assert_allclose((found @ found.T).numpy(), vectors.T @ vectors, atol=1e-4)
    assert torch.equal(principal_directions(features, 20), torch.eye(20))


def test_directions_of_many_features_are_close_to_the_leading_ones() -> None:
    """What the best five-hundredths of the directions explain, they explain but for a hundredth."""
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(1000, 600, generator=draws) * torch.logspace(0, -2, 600)
    features = features @ torch.linalg.qr(torch.randn(600, 600, generator=draws)).Q
    found = principal_directions(features, 30)
    torch.testing.assert_close(found.T @ found, torch.eye(30), atol=1e-5, rtol=0)
    best = (torch.linalg.svdvals(features)[:30] ** 2).sum()
    assert ((features @ found) ** 2).sum() > 0.99 * best
    assert torch.equal(found, principal_directions(features, 30))


def test_neighbors_are_looked_for_in_single_precision_also_under_autocast() -> None:
    draws = torch.Generator().manual_seed(0)
    labeled, references = torch.randn(5, 30, generator=draws), torch.randn(200, 30, generator=draws)
    score = fit_neighbors(labeled, references)
    expected = score.score(references)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(score.score(references), expected)


def test_images_known_to_be_of_no_class_are_nodes_that_stay_far() -> None:
    """The slow loop of the docstring, with the none images pinned at the largest value."""
    draws = torch.Generator().manual_seed(0)
    labeled, none, references = (torch.randn(n, 6, generator=draws) for n in (4, 3, 30))
    found = fit_neighbors(labeled, references, k=5, none=none)
    nodes = torch.cat([labeled, none, references])
    z = torch.nn.functional.normalize(nodes, dim=1)
    cosines = z @ z.T
    begin = [1 - float(cosines[i, :4].max()) for i in range(7, 37)]
    pinned = [0.0] * 4 + [max(begin)] * 3
    values = pinned + begin
    for _ in range(3):
        means = [sum(values[j] for j in cosines[i].argsort(descending=True)[:5]) / 5 for i in range(37)]
        values = pinned + means[7:]
    torch.testing.assert_close(found.values, torch.tensor(values), atol=1e-5, rtol=1e-4)
