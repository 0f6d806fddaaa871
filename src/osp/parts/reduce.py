"""Masked and weighted means over a batch, right also when the batch is spread over processes."""

from __future__ import annotations

import torch
from torch import Tensor

from osp.distributed import summed, world


def widened(values: Tensor) -> Tensor:
    """At least float32: half precision cannot count far, and the CPU's autocast does not widen a softmax."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def masked_mean(values: Tensor, mask: Tensor, least: float = 0.0) -> Tensor:
    """Σ_i m_i v_i / max(Σ_i m_i, least · N): the mean over the selected, counted as no fewer than a share of the batch.

    With `least` 0 it is the mean over the selected samples alone, and 0 (with a gradient of 0) where there is none;
    with 1 it is the mean over the batch, those not selected counting as 0. Over several processes the count is the
    global one, divided by their number because gradients are averaged.

    >>> masked_mean(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([True, False, True])).item()
    5.0
    """
    values = widened(values)
    if least == 1.0:
        return torch.where(mask, values, 0.0).sum() / max(len(mask), 1)
    count = _over_processes(mask.sum(dtype=values.dtype))
    return torch.where(mask, values, 0.0).sum() / count.clamp(min=max(least * len(mask), _tiny(values)))


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Σ_i w_i v_i / Σ_i w_i, and 0 where all weights are 0. No gradient flows into the weights.

    >>> weighted_mean(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])).item()
    2.0
    """
    values = widened(values)
    weights = weights.detach().to(values.dtype)
    total = _over_processes(weights.sum())
    return (weights * values).sum() / torch.where(total > 0, total, 1.0)  # a tiny divisor would make its gradient NaN


def batch_mean(mean: Tensor) -> Tensor:
    """The mean over the global batch, from that over this process's rows; its gradient flows into these rows.

    For what is not linear in it: the mean over processes of the gradients is then that of the global batch.

    >>> batch_mean(torch.tensor(2.0)).item()
    2.0
    """
    return mean if world() == 1 else mean + (_over_processes(mean.detach()) - mean.detach())


@torch.no_grad()
def batch_std(values: Tensor) -> Tensor:
    """The standard deviation of all numbers of the global batch (unbiased), without a gradient.

    >>> round(batch_std(torch.tensor([1.0, 3.0])).item(), 4)
    1.4142
    """
    if world() == 1:
        return values.std()
    own = values.double()
    count, total = summed(torch.stack([own.new_full((), own.numel()), own.sum()]))
    variance: Tensor = summed((own - total / count).square().sum()) / (count - 1)
    return variance.sqrt().to(values.dtype)


def _tiny(values: Tensor) -> float:
    """The smallest divisor: turns 0 / 0 into 0."""
    return torch.finfo(values.dtype).tiny


def _over_processes(total: Tensor) -> Tensor:
    """The sum over all processes, divided by their number."""
    return summed(total) / world()
