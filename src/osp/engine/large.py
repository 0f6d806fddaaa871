"""Results of a pass over the pool: in memory where they are small, in a file without a name where they are large."""

from __future__ import annotations

import contextlib
import os
import tempfile

import torch
from torch import Tensor

from osp.data.cache import cache_dir
from osp.errors import UserError

IN_MEMORY = 256 << 20
"""Bytes of one result above which it is kept on disk: scores of 64 million images."""


def rows_like(value: Tensor, rows: int) -> Tensor:
    """An empty CPU tensor for so many rows of what `value` has, mapped from a file where it would be large.

    The file lies beside the decoded images, as folders for temporary files are often in memory themselves, and is gone
    with the tensor.
    """
    shape = (rows, *value.shape[1:])
    count = rows * value[:1].numel()
    if not len(value) or count * value.element_size() <= IN_MEMORY:
        return value.new_empty(shape, device="cpu")
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".rows-", suffix=".partial", dir=cache_dir())
        os.close(handle)
        try:
            return torch.from_file(name, shared=True, size=count, dtype=value.dtype).view(shape)
        finally:
            with contextlib.suppress(OSError):  # Windows keeps files that are in use
                os.unlink(name)
    except (OSError, RuntimeError) as error:
        raise UserError(f"Scores of {rows:,} images cannot be kept in {cache_dir()}: {error}. Set OSP_CACHE.") from None
