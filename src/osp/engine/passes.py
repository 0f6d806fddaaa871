"""Full passes over a part of the data, without gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from osp.data.view_source import Draw
from osp.engine.batches import Feed
from osp.engine.large import rows_like
from osp.engine.optim import AveragedWeights
from osp.errors import UserError
from osp.methods.base import Part
from osp.nets import as_tested

POOL_BATCH = 256
"""Images per chunk: past this, larger chunks are slower on two cores."""


class FeedPool:
    """Full passes over a part of the data, as the hooks of a method see them (`osp.methods.Pool`)."""

    def __init__(
        self,
        method: nn.Module,
        feed: Feed,
        next_step: int,
        averaged: AveragedWeights | None,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._method, self._feed, self._next_step = method, feed, next_step
        self._averaged, self._autocast = averaged, autocast
        self.messages: list[str] = []

    def map(
        self,
        function: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
        part: Part = "unlabeled",
        rows: Tensor | None = None,
        ema: bool = False,
        view: str = "plain",
        train: bool = False,
    ) -> tuple[Tensor, ...]:
        index = self._feed.index[part]
        if rows is not None:
            index = index[rows.cpu().numpy()]
        with self._averaged.applied() if ema and self._averaged is not None else nullcontext():
            key = (self._next_step, part)
            results = map_images(function, self._method, self._feed, index, self._autocast, view, key, train)
        if not all(value.isfinite().all() for value in results):
            raise UserError(
                f"The network's outputs are no longer numbers at step {self._next_step}. Try a smaller learning rate."
            )
        return results

    def labels(self, part: Literal["labeled", "val"]) -> Tensor:
        return self._feed.targets[part]

    def restrict(self, stream: str, rows: Tensor | None) -> None:
        if rows is not None and rows.numel() == 0:
            self.messages.append(f"nothing was kept for the {stream} stream; it keeps what it had")
            return
        self._feed.streams[stream].restrict(None if rows is None else rows.cpu().numpy(), self._next_step)

    def restart_average(self, prefix: str = "") -> None:
        if self._averaged is not None:
            self._averaged.restart(prefix)

    def warn(self, message: str) -> None:
        self.messages.append(message)


def map_images(
    function: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
    module: nn.Module,
    feed: Feed,
    index: np.ndarray,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    view: str = "plain",
    key: tuple[int, str] = (0, ""),
    train: bool = False,
) -> tuple[Tensor, ...]:
    """Apply a function to images by index in chunks: no gradient, results concatenated on the CPU.

    In evaluation mode, unless `train` leaves the module as it is: then the chunks are of about one size, because batch
    norms see them. `key` (step and name) is what a view other than the plain one is drawn from.
    """
    collected: tuple[Tensor, ...] = ()
    bounds = chunk_bounds(len(index), even=train)
    with torch.no_grad() if train else as_tested(module), autocast():
        # No images at all go through the function too: it alone knows the shapes of what it gives.
        for first, end in itertools.pairwise(bounds):
            rows = index[first:end]
            if view == "plain":
                images = feed.views.plain(rows)
            else:
                draw = Draw(feed.seed, key[0], f"pool/{key[1]}/{first}", len(rows))
                images = feed.views.views(rows, (view,), draw)[view]
            result = function(images)
            results = result if isinstance(result, tuple) else (result,)
            # One tensor for all chunks: thousands of small ones would keep the allocator from giving back memory.
            if not collected:
                collected = tuple(rows_like(each, len(index)) for each in results)
            for whole, value in zip(collected, results, strict=True):
                if value.shape != (len(images), *whole.shape[1:]) or value.dtype != whole.dtype:
                    given, wanted = f"{tuple(value.shape)} {value.dtype}", f"{tuple(whole.shape[1:])} {whole.dtype}"
                    raise ValueError(f"the function gave {given} for {len(images)} images; wanted is {wanted} for each")
                whole[first : first + len(images)] = value
    return collected


def chunk_bounds(size: int, even: bool = False) -> list[int]:
    """Where chunks begin and end.

    >>> chunk_bounds(600), chunk_bounds(600, even=True), chunk_bounds(0)
    ([0, 256, 512, 600], [0, 200, 400, 600], [0, 0])
    """
    count = max(-(-size // POOL_BATCH), 1)
    if even:
        return [size * number // count for number in range(count + 1)]
    return [*range(0, max(size, 1), POOL_BATCH), size]
