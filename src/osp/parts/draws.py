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
    return _own(torch.rand((_rows(shape[0]), *shape[1:]), generator=generator, dtype=dtype))


def randn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal, a row for each image of this process."""
    return _own(torch.randn((_rows(shape[0]), *shape[1:]), generator=generator))


def beta(rows: int, a: float, generator: torch.Generator) -> Tensor:
    """Beta(a, a), a number for each image of this process. torch's own sampler takes no generator."""
    numbers = np.random.Generator(np.random.Philox(generator.initial_seed())).beta(a, a, size=_rows(rows))
    return _own(torch.from_numpy(numbers.astype(np.float32)))


def permutation(rows: int, generator: torch.Generator) -> Tensor:
    """Numbers of rows of the global batch, in a random order: this process's share of them."""
    return _own(torch.randperm(_rows(rows), generator=generator))


def _rows(own: int) -> int:
    """Rows of the global batch."""
    return own * distributed.world()


def _own(drawn: Tensor) -> Tensor:
    return drawn[distributed.rank() :: distributed.world()]
