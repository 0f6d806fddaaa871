"""Running averages over the pool, against a loop and by hand."""

from __future__ import annotations

import pytest
import torch

from osp.parts.pool_average import PoolAverage


def test_averages_equal_a_loop_over_the_images() -> None:
    average = PoolAverage(5, decay=0.9)
    draws = torch.Generator().manual_seed(0)
    last: dict[int, float] = {}
    totals, weights = [0.0] * 5, [0.0] * 5
    for _ in range(6):
        rows = torch.randperm(4, generator=draws)[:3]
        values = torch.rand(3, generator=draws)
        average.update(rows, values)
        last |= dict(zip(rows.tolist(), values.tolist(), strict=True))
        low, high = min(last.values()), max(last.values())
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            totals[row] = 0.9 * totals[row] + 0.1 * (value - low) / (high - low)
            weights[row] = 0.9 * weights[row] + 0.1
    expected = [total / weight if weight else 0.0 for total, weight in zip(totals, weights, strict=True)]
    assert average.values().tolist() == pytest.approx(expected, abs=1e-6)
    assert average.seen.tolist() == [weight > 0 for weight in weights]
    assert not average.seen[4]


def test_the_first_value_counts_in_full() -> None:
    average = PoolAverage(3, decay=0.9)
    average.update(torch.tensor([0, 1, 2]), torch.tensor([2.0, 3.0, 6.0]))
    assert average.values().tolist() == pytest.approx([0.0, 0.25, 1.0])


def test_an_image_that_is_twice_in_a_batch_counts_with_its_mean() -> None:
    average = PoolAverage(3, decay=0.5)
    average.update(torch.tensor([0, 1, 2, 1]), torch.tensor([0.0, 0.2, 1.0, 0.4]))
    assert average.values().tolist() == pytest.approx([0.0, 0.3, 1.0])


def test_equal_values_do_not_divide_by_zero() -> None:
    average = PoolAverage(2, decay=0.5)
    average.update(torch.tensor([0, 1]), torch.tensor([0.7, 0.7]))
    assert average.values().tolist() == [0.0, 0.0]
