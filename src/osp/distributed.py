"""Ranks in one place: which share of the global batch this process holds, and sums and rows over all processes.

Row i of a process is row `rank + i * world` of the global batch. With one process everything here gives back what it
was given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if _several() else 0


def world() -> int:
    """How many processes share the run."""
    return dist.get_world_size() if _several() else 1


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def summed(total: Tensor) -> Tensor:
    """The sum over all processes."""
    if world() == 1:
        return total
    total = total.clone()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def gathered(values: Tensor) -> Tensor:
    """The rows of the global batch, in its order and without a gradient; each process holds equally many.

    >>> gathered(torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if world() == 1:
        return values.detach()
    parts = [torch.empty_like(values) for _ in range(world())]
    dist.all_gather(parts, values.detach().contiguous())
    return torch.stack(parts, dim=1).flatten(0, 1)


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Give every process the mean gradient, in one flat all-reduce, as these networks are small.

    A parameter that no process used keeps no gradient: a zero one would let weight decay and momentum move it.
    """
    if world() == 1 or not parameters:
        return
    present = summed(torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device))
    used = [parameter for parameter, count in zip(parameters, present.tolist(), strict=True) if count]
    if not used:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
    flat = summed(torch.cat([gradient.reshape(-1) for gradient in gradients])) / world()
    offset = 0
    for parameter, gradient in zip(used, gradients, strict=True):
        parameter.grad = flat[offset : offset + gradient.numel()].view_as(gradient)
        offset += gradient.numel()
