"""Full passes over a part of the data, without gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
from torch import Tensor, nn

from osp.engine.batches import Feed
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
    ) -> tuple[Tensor, ...]:
        index = self._feed.index[part]
        if rows is not None:
            index = index[rows.cpu().numpy()]
        with self._averaged.applied() if ema and self._averaged is not None else nullcontext():
            results = map_images(function, self._method, self._feed, index, self._autocast)
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


def map_images(
    function: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
    module: nn.Module,
    feed: Feed,
    index: np.ndarray,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[Tensor, ...]:
    """Apply a function to images by index in chunks: eval mode, no gradient, results concatenated on the CPU."""
    collected: tuple[Tensor, ...] = ()
    with as_tested(module), autocast():
        # No images at all go through the function too: it alone knows the shapes of what it gives.
        for first in range(0, max(len(index), 1), POOL_BATCH):
            images = feed.views.plain(index[first : first + POOL_BATCH])
            result = function(images)
            results = result if isinstance(result, tuple) else (result,)
            # One tensor for all chunks: thousands of small ones would keep the allocator from giving back memory.
            if not collected:
                collected = tuple(each.new_empty((len(index), *each.shape[1:]), device="cpu") for each in results)
            for whole, value in zip(collected, results, strict=True):
                if value.shape != (len(images), *whole.shape[1:]) or value.dtype != whole.dtype:
                    given, wanted = f"{tuple(value.shape)} {value.dtype}", f"{tuple(whole.shape[1:])} {whole.dtype}"
                    raise ValueError(f"the function gave {given} for {len(images)} images; wanted is {wanted} for each")
                whole[first : first + len(images)] = value
    return collected
