"""Which rows make up the batch of a step where the images lie in shards: drawn shard by shard.

Rows from all over a pool that is larger than memory would make the disk seek for every image, and a permutation of all
of them would take up memory itself. So the shards are drawn in a random order, put together into blocks of at least
`MIXED` rows, and mixed within these. As everywhere, what a step draws is a function of (seed, step), every row comes
once in each epoch, and a restriction to some rows begins anew where it is made.
"""

from __future__ import annotations

import numpy as np

from osp.data.stream import Stream
from osp.randomness import permutation

MIXED = 1 << 16
"""Rows that are mixed with one another at least: half a megabyte for their order."""


class ShardStream(Stream):
    """A `Stream` that goes through its rows shard by shard; `starts` are the first rows of the shards, ascending."""

    def __init__(self, name: str, size: int, batch: int, seed: int, starts: np.ndarray) -> None:
        super().__init__(name, size, batch, seed)
        self._starts = np.unique(np.append(0, starts[starts < size])).astype(np.int64)

    def _drawn(self, start: int, kept: np.ndarray | None, position: int, end: int) -> np.ndarray:
        size = self.size if kept is None else len(kept)
        edges = self._edges(kept)
        parts = []
        while position < end:
            epoch, first = divmod(position, size)
            order = permutation(len(edges) - 1, self.seed, "stream", self.name, start, "shards", epoch)
            number, skipped, shards = self._find(order, edges, first)
            block = self._mixed(start, epoch, number, shards, edges)
            part = block[first - skipped : first - skipped + end - position]
            parts.append(part)
            position += len(part)
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def _edges(self, kept: np.ndarray | None) -> np.ndarray:
        """Where shards begin and end among what is drawn from; those of which nothing is kept are left out."""
        if kept is None:
            return np.append(self._starts, self.size)
        return np.unique(np.append(np.searchsorted(kept, self._starts), len(kept)))

    def _find(self, order: np.ndarray, edges: np.ndarray, first: int) -> tuple[int, int, np.ndarray]:
        """The block in which the `first` row of an epoch lies: its number, rows before it, its shards."""
        lengths = (edges[1:] - edges[:-1])[order]
        ends = np.cumsum(lengths)
        number = begin = skipped = 0
        while True:
            # up to the shard with which there are enough rows; what is left at the end makes a smaller block
            until = min(int(np.searchsorted(ends, skipped + MIXED)) + 1, len(order))
            if first < ends[until - 1]:
                return number, skipped, order[begin:until]
            number, begin, skipped = number + 1, until, int(ends[until - 1])

    def _mixed(self, start: int, epoch: int, number: int, shards: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """The rows of some shards in random order; the latest two blocks are kept, as a batch may lie across them."""
        key = (start, epoch * (len(edges) + 1) + number)
        block = self._blocks.get(key)
        if block is None:
            rows = np.concatenate([np.arange(edges[shard], edges[shard + 1]) for shard in shards])
            block = rows[permutation(len(rows), self.seed, "stream", self.name, start, "mixed", epoch, number)]
            self._keep(key, block)
        return block
