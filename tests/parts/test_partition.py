"""Otsu's threshold against scikit-image, and the pools in which there is nothing to cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.filters import threshold_otsu
from torch import Tensor

from osp.parts import otsu_threshold
from osp.parts.partition import BINS, id_share


def two_bumps(seed: int) -> Tensor:
    """Bumps of any size, place and width, squeezed into 0..1 as scores are."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(20, 2000, 2)
    parts = [draws.normal(draws.uniform(-4, 4), draws.uniform(0.1, 2), size) for size in sizes]
    return torch.from_numpy(np.concatenate(parts)).sigmoid().float()


@pytest.mark.parametrize("seed", range(40))
def test_the_threshold_is_that_of_scikit_image(seed: int) -> None:
    scores = two_bumps(seed)
    width = float(scores.max() - scores.min()) / BINS
    assert otsu_threshold(scores) == pytest.approx(threshold_otsu(scores.numpy()), abs=1.01 * width)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_is_nearly_as_good_as_the_best_of_all_cuts(seed: int) -> None:
    scores = two_bumps(seed).double().numpy()
    ordered = np.sort(scores)

    def between(below: np.ndarray, above: np.ndarray) -> float:
        share = len(below) / len(ordered)
        return float(share * (1 - share) * (below.mean() - above.mean()) ** 2)

    best = max(between(ordered[:i], ordered[i:]) for i in range(1, len(ordered)))
    cut = otsu_threshold(torch.from_numpy(scores))
    assert between(ordered[ordered <= cut], ordered[ordered > cut]) == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_nothing_lies_above_the_threshold_of_equal_scores(value: float, count: int) -> None:
    scores = torch.full((count,), value)
    assert not (scores > otsu_threshold(scores)).any()


@pytest.mark.parametrize("many", [1, 10, 1000])
@pytest.mark.parametrize("gap", [1.0, 1e-3, 1e-6, 6e-8])
def test_two_values_are_told_apart_however_near_and_rare(many: int, gap: float) -> None:
    for scores in (torch.tensor([0.5] * many + [0.5 + gap]), torch.tensor([0.5] + [0.5 + gap] * many)):
        above = scores > otsu_threshold(scores)
        assert torch.equal(above, scores > 0.5)


def test_no_scores_have_no_threshold() -> None:
    with pytest.raises(ValueError, match="no scores"):
        otsu_threshold(torch.empty(0))


def test_scores_that_are_not_numbers_are_refused() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="not a number"):
            otsu_threshold(torch.tensor([0.1, bad, 0.9]))


def test_half_precision_scores_do() -> None:
    scores = two_bumps(1)
    assert otsu_threshold(scores.half()) == pytest.approx(otsu_threshold(scores), abs=0.02)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_share_of_id_images_is_found_where_scores_overlap_little(share: float, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    inside = torch.randn(int(share * 4000), generator=draws)
    outside = 4 + torch.randn(4000 - len(inside), generator=draws)
    estimate = id_share(torch.cat([inside, outside]), torch.randn(400, generator=draws))
    assert estimate == pytest.approx(share, abs=0.1)
    assert estimate <= 1


def test_the_share_is_the_least_bound_of_a_slow_loop() -> None:
    draws = torch.Generator().manual_seed(0)
    pool, known = torch.rand(50, generator=draws), torch.rand(20, generator=draws) ** 2
    bounds = []
    for t in sorted(known.tolist())[6:]:
        bounds.append((pool <= t).float().mean().item() / (known <= t).float().mean().item())
    assert id_share(pool, known) == pytest.approx(min(*bounds, 1.0), abs=1e-6)
