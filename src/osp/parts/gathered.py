"""Values of the global batch, for what a single process's share of it cannot tell: its percentiles, its mean."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def gathered(values: Tensor) -> Tensor:
    """The rows of all processes, in no particular order and without a gradient; each process has equally many.

    >>> gathered(torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if not dist.is_available() or not dist.is_initialized():
        return values.detach()
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values.detach().contiguous())
    return torch.cat(parts)
