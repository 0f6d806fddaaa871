"""The memory of embeddings, which rows it holds and what it says; running averages, against a loop and by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from osp.parts.memory import EmbeddingMemory, PoolAverage


def rows(n: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def test_the_newest_rows_stay_with_their_targets() -> None:
    memory = EmbeddingMemory(width=2, num_targets=1, capacity=5)
    assert len(memory) == 0
    for number in range(3):
        value = torch.arange(2.0) + 2 * number
        memory.push(value[:, None].expand(-1, 2), value[:, None])
    assert len(memory) == 5
    assert memory.targets[:, 0].tolist() == [4.0, 5.0, 2.0, 3.0, 0.0]  # batch by batch, the newest first
    assert torch.equal(memory.embeddings[:, 0], memory.targets[:, 0])


def test_a_prediction_is_the_mean_of_targets_weighted_by_similarity() -> None:
    memory = EmbeddingMemory(width=3, num_targets=4, capacity=6)
    embeddings, targets = F.normalize(rows(6, 3, 0)), rows(6, 4, 1).softmax(dim=1)
    memory.push(embeddings, targets)
    asked = F.normalize(rows(2, 3, 2))
    found = memory.predict(asked, 0.1)
    for vector, answer in zip(asked.tolist(), found.tolist(), strict=True):
        weights = [math.exp(sum(a * b for a, b in zip(vector, row, strict=True)) / 0.1) for row in embeddings.tolist()]
        for k in range(4):
            expected = sum(w * t[k] for w, t in zip(weights, targets.tolist(), strict=True)) / sum(weights)
            assert answer[k] == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))


def test_the_gradient_flows_into_what_is_asked_only() -> None:
    memory = EmbeddingMemory(width=3, num_targets=2, capacity=4)
    pushed = rows(4, 3, 0).requires_grad_()
    memory.push(pushed, rows(4, 2, 1).softmax(dim=1).requires_grad_())
    asked = rows(2, 3, 2).requires_grad_()
    memory.predict(asked, 1.0)[:, 0].sum().backward()  # type: ignore[no-untyped-call]
    assert asked.grad is not None
    assert asked.grad.any()
    assert pushed.grad is None
    assert not memory.targets.requires_grad


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
