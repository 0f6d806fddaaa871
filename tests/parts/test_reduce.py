"""Masked means, on one process and over two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.pairs import in_two, wait_for
from osp import distributed
from osp.parts.reduce import batch_mean, masked_mean, weighted_mean


def test_only_selected_values_count() -> None:
    values = torch.tensor([1.0, 5.0, 9.0, 100.0])
    assert masked_mean(values, torch.tensor([True, True, True, False])).item() == 5.0


def test_an_empty_mask_gives_zero_with_a_gradient_of_zero() -> None:
    values = torch.tensor([1.0, 1e30], requires_grad=True)
    mean = masked_mean(values, torch.tensor([False, False]))
    mean.backward()  # type: ignore[no-untyped-call]
    assert mean.item() == 0.0
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 0.0]


def test_weights_of_zero_give_zero_with_a_gradient_of_zero() -> None:
    values = torch.tensor([1.0, 5.0], requires_grad=True)
    (10 * weighted_mean(values, torch.zeros(2))).backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 0.0]


def test_over_the_batch_the_divisor_is_the_number_of_all() -> None:
    values, mask = torch.tensor([1.0, 5.0, torch.inf, 9.0]), torch.tensor([True, False, False, True])
    assert masked_mean(values, mask, least=1.0).item() == 2.5
    assert masked_mean(values, ~mask & False, least=1.0).item() == 0.0


@pytest.mark.parametrize(("least", "divisor"), [(0.0, 2), (0.4, 2), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_the_divisor_is_no_less_than_a_share_of_the_batch(least: float, divisor: int) -> None:
    values, mask = torch.tensor([1.0, 5.0, torch.inf, 9.0]), torch.tensor([True, False, False, True])
    assert masked_mean(values, mask, least).item() == pytest.approx(10 / divisor)


@pytest.mark.parametrize("least", [0.0, 0.5, 1.0])
def test_no_values_at_all_give_zero_with_a_gradient(least: float) -> None:
    values = torch.empty(0, requires_grad=True)
    mean = masked_mean(values, torch.empty(0, dtype=torch.bool), least)
    mean.backward()  # type: ignore[no-untyped-call]
    assert mean.item() == 0.0


def test_values_left_out_may_be_anything() -> None:
    values = torch.tensor([2.0, torch.inf, torch.nan], requires_grad=True)
    mean = masked_mean(values, torch.tensor([True, False, False]))
    mean.backward()  # type: ignore[no-untyped-call]
    assert mean.item() == 2.0
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_many_values(dtype: torch.dtype) -> None:
    values = torch.full((100_001,), 0.5, dtype=dtype)
    assert masked_mean(values, torch.ones(100_001, dtype=torch.bool)).item() == pytest.approx(0.5, rel=1e-2)


LEAST = (0.3, 0.75, 1.0)


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs and masks; the even rows (rank 0) hold five selected samples, the odd ones (rank 1) only one."""
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0]).bool()
    return inputs, mask, torch.ones(3)


def gradient(inputs: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor, least: float = 0.0) -> torch.Tensor:
    weights = weights.clone().requires_grad_()
    masked_mean((inputs @ weights).square(), mask, least).backward()  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    return weights.grad


def curved_gradient(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Of the square of a mean, which is not a mean over samples."""
    weights = weights.clone().requires_grad_()
    batch_mean((inputs @ weights).mean()).square().backward()  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    return weights.grad


def gradients_of_a_share(folder: Path) -> None:
    rank = distributed.rank()
    inputs, mask, weights = problem()
    own = gradient(inputs[rank::2], mask[rank::2], weights)
    one_sided = gradient(inputs[rank::2], mask[rank::2] & (rank == 0), weights)
    nobody = gradient(inputs[rank::2], mask[rank::2] & False, weights)
    partly = [gradient(inputs[rank::2], mask[rank::2], weights, least) for least in LEAST]
    torch.save([own, one_sided, nobody, curved_gradient(inputs[rank::2], weights), *partly], folder / f"{rank}.pt")


@pytest.mark.slow
def test_averaged_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    wait_for(in_two(gradients_of_a_share, tmp_path))
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    average = [(left + right) / 2 for left, right in zip(*found, strict=True)]
    inputs, mask, weights = problem()
    torch.testing.assert_close(average[0], gradient(inputs, mask, weights))
    torch.testing.assert_close(average[1], gradient(inputs, mask & (torch.arange(12) % 2 == 0), weights))
    assert average[2].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(average[3], curved_gradient(inputs, weights))
    for least, found_gradient in zip(LEAST, average[4:], strict=True):
        torch.testing.assert_close(found_gradient, gradient(inputs, mask, weights, least))
