"""Clusters of the pool against a slow loop, and on kinds where the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from osp.parts import clusters
from osp.parts.clusters import SHARPNESS, Clusters, aliasing_prototypes, fit_clusters, free_centers, half_whitened


def kind(place: int, n: int, seed: int, dim: int = 8, width: float = 0.15) -> Tensor:
    """Images around one axis."""
    return torch.eye(dim)[place] + width * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def unit(rows: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def test_twenty_rounds_equal_a_loop_over_images_and_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(0)
    labeled, pool, asked = (torch.randn(n, 5, generator=draws) for n in (6, 40, 7))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    starts: list[np.ndarray] = []
    far_apart = clusters._far_apart

    def noted(classes: Tensor, pool: Tensor, count: int, seed: int) -> Tensor:
        chosen = far_apart(classes, pool, count, seed)
        starts.append(chosen.numpy())
        return chosen

    monkeypatch.setattr(clusters, "_far_apart", noted)
    found = fit_clusters(labeled, labels, pool, 3, num_free=4)

    mean = torch.cat([labeled, pool]).double().numpy().mean(axis=0)
    stretch = found.basis.double().numpy()
    z_l, z_p, z = (unit((each.double().numpy() - mean) @ stretch) for each in (labeled, pool, asked))
    expected = np.zeros(7)
    for start in starts:
        centers = [unit(z_l[labels.numpy() == c].sum(axis=0)) for c in range(3)] + list(start.astype(float))
        for _ in range(20):
            sums = [z_l[labels.numpy() == c].sum(axis=0) for c in range(3)] + [np.zeros(5) for _ in range(4)]
            for image in z_p:
                weights = np.array([math.exp(10 * image @ center) for center in centers])
                for k, weight in enumerate(weights / weights.sum()):
                    sums[k] = sums[k] + weight * image
            centers = [unit(each) for each in sums]
        for i, image in enumerate(z):
            exps = [math.exp(10 * image @ center) for center in centers]
            expected[i] += (math.log(sum(exps[3:])) - math.log(sum(exps[:3]))) / 3
    assert len(starts) == 3
    np.testing.assert_allclose(found.score(asked).numpy(), expected, atol=2e-4)


def test_directions_are_stretched_half_way_to_equal_variance() -> None:
    """Variances λ become √λ; what hardly varies is stretched like a thousandth of the largest."""
    rows = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0)).double() * torch.tensor(
        [4.0, 1.0, 0.5, 1e-6]
    )
    basis = half_whitened(rows.float(), rows.mean(dim=0).float()).double()
    values = np.linalg.eigvalsh(np.cov(rows.numpy().T, bias=True))
    after = np.cov((rows.numpy() - rows.numpy().mean(axis=0)) @ basis.numpy(), rowvar=False, bias=True)
    np.testing.assert_allclose(np.diag(after)[1:], values[1:] ** 0.5, rtol=1e-4)
    np.testing.assert_allclose(after - np.diag(np.diag(after)), 0, atol=1e-4)
    assert float(basis[:, 0].norm()) == pytest.approx((1e-3 * values[-1]) ** -0.25, rel=1e-4)


def test_many_directions_are_reduced_to_the_leading_ones() -> None:
    """Of 600 directions, 20 of which vary: as good as those 20 alone."""
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 20, generator=draws) @ torch.randn(20, 600, generator=draws)
    rows = rows + 1e-3 * torch.randn(500, 600, generator=draws)
    mean = rows.mean(dim=0)
    basis = half_whitened(rows, mean)
    assert basis.shape == (600, 256)
    seen = ((rows - mean) @ basis).double()
    spread = torch.linalg.eigvalsh(seen.T @ seen / 500)[-20:]
    expected = torch.linalg.svdvals((rows - mean).double())[:20].flip(0) / 500**0.5
    torch.testing.assert_close(spread, expected, rtol=1e-2, atol=0)


def test_a_kind_without_labels_is_unknown_however_near_it_is_to_a_class() -> None:
    """The unknown kind leans towards class 0; a sample of that class does not fall to it."""
    beside = 0.7 * torch.eye(8)[0] + 0.7 * torch.eye(8)[5]
    others = beside + 0.1 * torch.randn(80, 8, generator=torch.Generator().manual_seed(9))
    pool = torch.cat([kind(0, 60, 1), kind(1, 60, 2), others])
    found = fit_clusters(torch.cat([kind(0, 5, 4), kind(1, 5, 5)]), torch.arange(10) // 5, pool, 2)
    known, unknown = found.score(torch.cat([kind(0, 30, 6), kind(1, 30, 7)])), found.score(others)
    auroc = (known[:, None] < unknown[None]).float().mean()
    assert auroc > 0.97


def test_free_centers_start_apart_from_the_classes_and_from_one_another() -> None:
    pool = torch.nn.functional.normalize(torch.cat([kind(place, 50, place, width=0.03) for place in range(4)]), dim=1)
    for seed in range(5):
        chosen = clusters._far_apart(torch.eye(8)[:2], pool, 2, seed)
        assert {int(each.argmax()) for each in chosen} == {2, 3}


def test_without_free_centers_what_is_far_from_every_class_is_unknown() -> None:
    labeled = torch.cat([kind(0, 5, 1), kind(1, 5, 2)])
    found = fit_clusters(labeled, torch.arange(10) // 5, labeled[:0], 2)
    assert found.free.shape == (3, 0, 8)
    scores = found.score(torch.cat([kind(0, 1, 3), kind(4, 1, 4)]))
    assert scores[0] < scores[1]
    assert not aliasing_prototypes(found, labeled[:0]).any()


@pytest.mark.parametrize("pool", [0, 1, 3, 25])
@pytest.mark.parametrize("dim", [2, 8])
def test_small_pools_single_labels_and_constant_features_give_numbers(pool: int, dim: int) -> None:
    """Fewer images than centers, one label per class, more centers than directions, features that are all alike."""
    for rows in (torch.randn(3 + pool, dim, generator=torch.Generator().manual_seed(0)), torch.ones(3 + pool, dim)):
        found = fit_clusters(rows[:3], torch.arange(3), rows[3:], 3)
        assert found.free.shape[1] == free_centers(3, pool)
        assert found.score(rows).isfinite().all()
        assert aliasing_prototypes(found, rows[3:]).isfinite().all()


def test_the_same_features_give_the_same_bits_whatever_was_drawn_before() -> None:
    labeled, pool = kind(0, 6, 1), torch.cat([kind(0, 60, 2), kind(3, 60, 3)])
    one = fit_clusters(labeled, torch.arange(6) % 2, pool, 2)
    torch.manual_seed(99)
    torch.rand(7)
    other = fit_clusters(labeled, torch.arange(6) % 2, pool, 2)
    assert torch.equal(one.known, other.known)
    assert torch.equal(one.free, other.free)


def test_prototypes_are_means_of_the_unknown_kind_most_like_the_class() -> None:
    """Two classes, two unknown kinds; kind 2 leans towards class 0, kind 3 towards class 1. Raw features, not unit."""
    lean = [3 * (torch.eye(6)[2] + 0.5 * torch.eye(6)[0]), 2 * (torch.eye(6)[3] + 0.5 * torch.eye(6)[1])]
    pool = torch.cat([each.repeat(40, 1) for each in lean])
    pool = pool + 0.01 * torch.randn(pool.shape, generator=torch.Generator().manual_seed(0))
    zero = torch.zeros(6)
    centers = torch.nn.functional.normalize(torch.stack(lean), dim=1)
    found = Clusters(zero, torch.eye(6), torch.eye(6)[None, :2], centers[None])
    r = (SHARPNESS * torch.nn.functional.normalize(pool, dim=1) @ torch.cat([torch.eye(6)[:2], centers]).T).softmax(1)
    for c in range(2):
        expected = sum(r[i, 2 + c] * pool[i] for i in range(80)) / r[:, 2 + c].sum()
        torch.testing.assert_close(aliasing_prototypes(found, pool)[c], expected, rtol=1e-4, atol=1e-4)


def test_scores_are_in_single_precision_also_under_autocast() -> None:
    found = fit_clusters(kind(0, 6, 1), torch.arange(6) % 2, kind(3, 100, 2), 2)
    asked = kind(3, 50, 3)
    expected = found.score(asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(found.score(asked), expected)


def test_images_known_to_be_of_no_class_pull_free_centers_and_never_a_class() -> None:
    """An unknown kind as near to class 0 as its own images are: the pool alone gives it to the class."""
    labeled = torch.cat([kind(0, 5, 1), kind(1, 5, 2)])
    labels = torch.tensor([0] * 5 + [1] * 5)
    alike = torch.eye(8)[0] + 0.45 * torch.eye(8)[5]
    unknown = alike + 0.1 * torch.randn(60, 8, generator=torch.Generator().manual_seed(3))
    pool = torch.cat([kind(0, 60, 4), kind(1, 60, 5), unknown[20:]])
    asked = torch.cat([kind(0, 40, 6), unknown[20:]])

    def gap(none: Tensor | None) -> float:
        score = fit_clusters(labeled, labels, pool, 2, none=none).score(asked)
        return float(score[40:].mean() - score[:40].mean())

    assert gap(unknown[:20]) > gap(None) + 0.3
    empty = fit_clusters(labeled, labels, pool, 2, none=pool[:0])
    assert torch.equal(empty.free, fit_clusters(labeled, labels, pool, 2).free)
