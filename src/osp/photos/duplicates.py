"""Images that are there twice: exactly (the same bytes) or nearly (resized, saved again, slightly edited).

Two images are near duplicates where their features have a cosine of at least `COSINE` and their difference hashes
differ in at most `BITS` of 64. The first is cheap and finds candidates; only those are decoded for the second, which
tells the same picture from another one of the same thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from osp.data.decode import Unreadable, decode
from osp.photos.features import Features

COSINE = 0.9
BITS = 8
_CHUNK = 1024


@dataclass(frozen=True)
class Twins:
    """Images that count as one: positions among the labelled images, and in the pile."""

    labeled: tuple[int, ...]
    pile: tuple[int, ...]
    exact: bool
    """All have the same bytes."""


@dataclass(frozen=True)
class Duplicates:
    """All groups of two or more."""

    groups: tuple[Twins, ...]

    @property
    def in_both(self) -> tuple[Twins, ...]:
        """Labelled images that also lie in the pile."""
        return tuple(group for group in self.groups if group.labeled and group.pile)

    @property
    def within_pile(self) -> tuple[Twins, ...]:
        """Images that lie in the pile more than once."""
        return tuple(group for group in self.groups if len(group.pile) > 1)

    def contradictions(self, labels: Sequence[int] | np.ndarray) -> tuple[Twins, ...]:
        """The same image sorted into different classes."""
        return tuple(group for group in self.groups if len({int(labels[i]) for i in group.labeled}) > 1)

    def pile_once(self, size: int) -> np.ndarray:
        """Positions in a pile of this size, each image counted once and those that are labelled not at all."""
        extra = {i for group in self.groups for i in (group.pile if group.labeled else group.pile[1:])}
        return np.array([i for i in range(size) if i not in extra], dtype=np.int64)


def find_duplicates(labeled: Features, pile: Features) -> Duplicates:
    """Exact and near duplicates among labelled images and pile."""
    files, keys = [*labeled.files, *pile.files], [*labeled.keys, *pile.keys]
    first: dict[str, int] = {}
    parent = [first.setdefault(key, i) for i, key in enumerate(keys)]

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    unique = np.array(sorted(first.values()), dtype=np.int64)
    features = np.concatenate([labeled.rows(), pile.rows()])[unique]

    @lru_cache(maxsize=100_000)
    def hashed(i: int) -> int | None:
        try:
            return difference_hash(decode(files[i], 64))
        except Unreadable:  # gone since
            return None

    for one, other in _similar(features):
        i, j = int(unique[one]), int(unique[other])
        a, b = hashed(i), hashed(j)
        if a is not None and b is not None and (a ^ b).bit_count() <= BITS:
            parent[max(root(i), root(j))] = min(root(i), root(j))
    groups: dict[int, list[int]] = {}
    for i in range(len(files)):
        groups.setdefault(root(i), []).append(i)
    count = len(labeled)
    return Duplicates(
        tuple(
            Twins(
                tuple(i for i in members if i < count),
                tuple(i - count for i in members if i >= count),
                len({keys[i] for i in members}) == 1,
            )
            for members in groups.values()
            if len(members) > 1
        )
    )


def _similar(features: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of rows with a large cosine, a block of rows at a time."""

    def unit(start: int) -> np.ndarray:
        rows = features[start : start + _CHUNK].astype(np.float32)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows

    for left in range(0, len(features), _CHUNK):
        rows = unit(left)
        for right in range(left, len(features), _CHUNK):
            for one, other in np.argwhere(rows @ unit(right).T >= COSINE):
                if left + one < right + other:
                    yield left + int(one), right + int(other)


def difference_hash(image: np.ndarray) -> int:
    """64 bits: whether each of 8x8 places is brighter than its right neighbour (dHash, N. Krawetz 2013).

    >>> bin(difference_hash(np.tile(np.arange(63, -1, -1, dtype=np.uint8) * 4, (3, 64, 1)))).count("1")
    64
    """
    grey = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).convert("L")
    small = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = (small[:, :-1] > small[:, 1:]).ravel()
    return int("".join("1" if bit else "0" for bit in bits), 2)
