"""Random numbers for the images of a batch, the same whether one process holds the batch or several share it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from osp import distributed


def rand(shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform in [0, 1), a row for each image of this process: drawn for the global batch, of which it holds a share.

    On the CPU, like every draw: all devices then see the same numbers.
    """
    rows, rank, world = _share(shape[0])
    return torch.rand((rows, *shape[1:]), generator=generator, dtype=dtype)[rank::world]


def randn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal, a row for each image of this process."""
    rows, rank, world = _share(shape[0])
    return torch.randn((rows, *shape[1:]), generator=generator)[rank::world]


def beta(rows: int, a: float, generator: torch.Generator) -> Tensor:
    """Beta(a, a), a number for each image of this process. torch's own sampler takes no generator."""
    rows, rank, world = _share(rows)
    numbers = np.random.Generator(np.random.Philox(generator.initial_seed())).beta(a, a, size=rows)
    return torch.from_numpy(numbers[rank::world].astype(np.float32))


def permutation(rows: int, generator: torch.Generator) -> Tensor:
    """Numbers of rows of the global batch, in a random order: this process's share of them."""
    rows, rank, world = _share(rows)
    return torch.randperm(rows, generator=generator)[rank::world]


def _share(rows: int) -> tuple[int, int, int]:
    """Rows of the global batch, the number of this process and how many there are."""
    world = distributed.world()
    return rows * world, distributed.rank(), world
