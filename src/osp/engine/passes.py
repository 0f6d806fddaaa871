"""Full passes over a part of the data, without gradient."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from osp import distributed
from osp.data.cache import cache_dir
from osp.data.view_source import Draw, ViewSource
from osp.distributed import Everywhere
from osp.engine.batches import Feed
from osp.engine.optim import AveragedWeights
from osp.errors import UserError
from osp.methods.base import OfImages, Part
from osp.nets import as_tested

IN_MEMORY = 256 << 20
"""Bytes of one result above which it is kept on disk: scores of 64 million images."""
POOL_BATCH = 256
"""Images per chunk: past this, larger chunks are slower on two cores."""


class Passes:
    """Apply functions to images by index in chunks: no gradient, and in evaluation mode unless told otherwise.

    With the averaged weights where `ema` says so, and on other images than the feed's where `views` has them. `train`
    leaves the module in training mode: then the chunks are of about one size, because batch norms see them. `key` (step
    and name) is what a view other than the plain one is drawn from.
    """

    def __init__(
        self,
        module: nn.Module,
        feed: Feed,
        averaged: AveragedWeights | None = None,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.module, self.feed, self.autocast = module, feed, autocast
        self.averaged = AveragedWeights(module, None) if averaged is None else averaged

    def map(
        self,
        function: OfImages,
        index: np.ndarray,
        ema: bool = False,
        view: str = "plain",
        key: tuple[int, str] = (0, ""),
        train: bool = False,
        views: ViewSource | None = None,
        take: Callable[[int, tuple[Tensor, ...]], None] | None = None,
    ) -> tuple[Tensor, ...]:
        """The results of all chunks, concatenated on the CPU; or none, and `take` is given each chunk's in order.

        `take` gets the number of the chunk's first image and the results, on the device. Over several processes they
        take turns: chunk k is computed by process k modulo their number, as it would be by one, and given to all. In
        training mode each computes all chunks: batch norms then measure whole chunks, everywhere the same.
        """
        collected: tuple[Tensor, ...] = ()

        def collect(first: int, results: tuple[Tensor, ...]) -> None:
            nonlocal collected
            # One tensor for all chunks: thousands of small ones would keep the allocator from giving back memory.
            if not collected:
                collected = tuple(rows_like(each, len(index)) for each in results)
            for whole, value in zip(collected, results, strict=True):
                if value.shape[1:] != whole.shape[1:] or value.dtype != whole.dtype:
                    given, wanted = f"{tuple(value.shape[1:])} {value.dtype}", f"{tuple(whole.shape[1:])} {whole.dtype}"
                    raise ValueError(f"the function gave {given} for each image; wanted is {wanted}")
                whole[first : first + len(value)] = value

        def compute(first: int, end: int) -> tuple[Tensor, ...]:
            rows = index[first:end]
            if view == "plain":
                images = source.plain(rows)
            else:
                draw = Draw(self.feed.seed, key[0], f"pool/{key[1]}/{first}", len(rows))
                images = source.views(rows, (view,), draw)[view]
            with distributed.alone():
                result = function(images)
            results = result if isinstance(result, tuple) else (result,)
            if any(value.shape[:1] != (end - first,) for value in results):
                shapes = ", ".join(str(tuple(value.shape)) for value in results)
                raise ValueError(f"the function gave {shapes} for {end - first} images; wanted is one row for each")
            return results

        source = self.feed.views if views is None else views
        take = take or collect
        chunks = list(itertools.pairwise(chunk_bounds(len(index), even=train)))
        with (
            self.averaged.applied() if ema else nullcontext(),
            torch.no_grad(),
            distributed.alone() if train else as_tested(self.module),
            self.autocast(),
        ):
            rank, world = distributed.rank(), distributed.world()
            # No images at all go through the function too: it alone knows the shapes of what it gives.
            for turn in range(0, len(chunks), world):
                now = chunks[turn : turn + world]
                own = compute(*now[rank]) if rank < len(now) else compute(0, 0)
                sizes = [end - first for first, end in now] + [0] * (world - len(now))
                of_all = zip(*(distributed.gathered_blocks(value, sizes) for value in own), strict=True)
                for (first, _), results in zip(now, of_all, strict=False):
                    take(first, results)
        if train:
            distributed.take_from_first(self.module.buffers())
        return collected


class FeedPool:
    """Passes over a part of the data, as the hooks of a method see them (`osp.methods.Pool`)."""

    def __init__(self, passes: Passes, next_step: int) -> None:
        self._passes, self._feed, self._next_step = passes, passes.feed, next_step
        self.messages: list[str] = []

    def map(
        self,
        function: OfImages,
        part: Part = "unlabeled",
        rows: Tensor | None = None,
        ema: bool = False,
        view: str = "plain",
        train: bool = False,
    ) -> tuple[Tensor, ...]:
        results = self._passes.map(function, self._images(part, rows), ema, view, (self._next_step, part), train)
        if not all(value.isfinite().all() for value in results):
            raise Everywhere(
                f"The network's outputs are no longer numbers at step {self._next_step}. Try a smaller learning rate."
            )
        return results

    def each(
        self, function: OfImages, take: Callable[..., None], part: Part = "unlabeled", rows: Tensor | None = None
    ) -> None:
        index = self._images(part, rows)
        numbers = torch.arange(len(index)) if rows is None else rows.cpu()

        def taken(first: int, results: tuple[Tensor, ...]) -> None:
            take(numbers[first : first + len(results[0])], *results)

        self._passes.map(function, index, take=taken)

    def _images(self, part: Part, rows: Tensor | None) -> np.ndarray:
        """The images of these rows of a part, by their numbers."""
        index = self._feed.index[part]
        return index if rows is None else index[rows.cpu().numpy()]

    def labels(self, part: Literal["labeled", "val"]) -> Tensor:
        return self._feed.targets[part]

    def restrict(self, stream: str, rows: Tensor | None) -> None:
        if rows is not None and rows.numel() == 0:
            self.messages.append(f"nothing was kept for the {stream} stream; it keeps what it had")
            return
        self._feed.streams[stream].restrict(None if rows is None else rows.cpu().numpy(), self._next_step)

    def restart_average(self, prefix: str = "") -> None:
        self._passes.averaged.restart(prefix)

    def warn(self, message: str) -> None:
        self.messages.append(message)


def chunk_bounds(size: int, even: bool = False) -> list[int]:
    """Where chunks begin and end.

    >>> chunk_bounds(600), chunk_bounds(600, even=True), chunk_bounds(0)
    ([0, 256, 512, 600], [0, 200, 400, 600], [0, 0])
    """
    count = max(-(-size // POOL_BATCH), 1)
    if even:
        return [size * number // count for number in range(count + 1)]
    return [*range(0, max(size, 1), POOL_BATCH), size]


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
