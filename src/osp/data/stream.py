"""Which rows make up the batch of a step: a pure function of (seed, step), so resuming needs no position to be kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from osp.randomness import key_to_seed, permutation

_BLOCK = 4096
"""Positions drawn at once where a permutation is shorter: two rows in batches of 448 would need 224 draws a step."""
MIXED = 1 << 16  # rows of shards that are mixed with one another at least: half a megabyte for their order


class Stream:
    """Rows of one part of the data, in batches: positions step*batch.. of an endless row of permutations.

    Every row comes once in each permutation, so all are seen equally often, also where a batch is larger than the part.
    The batch is the global one; each process takes its slice of it.
    """

    def __init__(self, name: str, size: int, batch: int, seed: int) -> None:
        if size < 1 or batch < 1:
            raise ValueError(f"stream {name!r}: size {size} and batch {batch} must be at least 1")
        self.name, self.size, self.batch, self.seed = name, size, batch, seed
        # What is drawn from which step on, at most two: the one in force and the one before it or still to come.
        self._sets: list[tuple[int, np.ndarray | None]] = [(0, None)]
        self._blocks: dict[tuple[int, int], np.ndarray] = {}

    def restrict(self, rows: np.ndarray | None, start: int) -> None:
        """From step `start` on draw only from these rows (None: from all), in permutations that begin again there."""
        if start < 0:
            raise ValueError(f"stream {self.name!r}: start {start} is negative")
        if rows is not None:
            rows = np.asarray(rows)
            if rows.size == 0:
                raise ValueError(f"stream {self.name!r}: nothing to draw from; keep the previous rows instead")
            if rows.dtype.kind not in "iu":
                raise ValueError(f"stream {self.name!r}: row numbers needed, not {rows.dtype}")
            rows = np.unique(rows).astype(np.int64)  # what is drawn depends on the set, not on how it is listed
            if rows[0] < 0 or rows[-1] >= self.size:
                raise ValueError(f"stream {self.name!r}: rows {rows[0]} to {rows[-1]} given of {self.size}")
        self._sets = [*[entry for entry in self._sets if entry[0] < start][-1:], (start, rows)]
        self._blocks.clear()

    def rows(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """This process's slice `[rank::world]` of the batch of row numbers (int64) of a step."""
        try:
            start, kept = next(entry for entry in reversed(self._sets) if entry[0] <= step)
        except StopIteration:
            raise ValueError(f"stream {self.name!r}: what step {step} drew from is no longer kept") from None
        position, end = (step - start) * self.batch, (step - start + 1) * self.batch
        parts = []
        while position < end:
            parts.append(self._block(start, kept, position)[: end - position])
            position += len(parts[-1])
        batch = np.concatenate(parts)[rank::world]
        return batch if kept is None else kept[batch]

    def _block(self, start: int, kept: np.ndarray | None, position: int) -> np.ndarray:
        """From this position of the endless row of permutations that begins at the step `start`, some way on."""
        size = self.size if kept is None else len(kept)
        number, first = divmod(position, size * -(-_BLOCK // size))

        def draw() -> np.ndarray:
            key = key_to_seed(self.seed, "stream", self.name, start, number)
            raw = np.random.Philox(key).random_raw(size * -(-_BLOCK // size))  # stable under later NumPy versions
            return np.argsort(raw.reshape(-1, size), axis=1, kind="stable").reshape(-1)

        return self._kept((start, number), draw)[first:]

    def _kept(self, key: tuple[int, int], draw: Callable[[], np.ndarray]) -> np.ndarray:
        """The latest two blocks are kept, as a batch may lie across them."""
        if key not in self._blocks:
            while len(self._blocks) > 1:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[key] = draw()
        return self._blocks[key]

    def state(self) -> dict[str, np.ndarray]:
        """The rows drawn from and since when, for checkpoints; no rows stand for all, as none cannot be asked for."""
        state = {}
        for suffix, (start, rows) in zip(("", "_before"), reversed(self._sets), strict=False):
            state["start" + suffix] = np.array(start, np.int64)
            state["rows" + suffix] = np.empty(0, np.int64) if rows is None else rows.copy()
        return state

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Take up what `state` gave."""
        self._sets = []
        for suffix in ("_before", ""):
            if "start" + suffix in state:
                rows = np.asarray(state["rows" + suffix])
                self.restrict(rows if rows.size else None, int(state["start" + suffix]))


class ShardStream(Stream):
    """A `Stream` that goes through its rows shard by shard; `starts` are the first rows of the shards, ascending.

    Rows from all over a pool that is larger than memory would make the disk seek for every image, and a permutation of
    all of them would take up memory itself. So the shards are drawn in a random order, put together into blocks of at
    least `MIXED` rows, and mixed within these.
    """

    def __init__(self, name: str, size: int, batch: int, seed: int, starts: np.ndarray) -> None:
        super().__init__(name, size, batch, seed)
        self._starts = np.unique(np.append(0, starts[starts < size])).astype(np.int64)

    def _block(self, start: int, kept: np.ndarray | None, position: int) -> np.ndarray:
        edges = self._edges(kept)
        epoch, first = divmod(position, self.size if kept is None else len(kept))
        order = permutation(len(edges) - 1, self.seed, "stream", self.name, start, "shards", epoch)
        number, skipped, shards = self._find(order, edges, first)

        def draw() -> np.ndarray:
            rows = np.concatenate([np.arange(edges[shard], edges[shard + 1]) for shard in shards])
            mixed = permutation(len(rows), self.seed, "stream", self.name, start, "mixed", epoch, number)
            return np.take(rows, mixed)

        return self._kept((start, epoch * (len(edges) + 1) + number), draw)[first - skipped :]

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
