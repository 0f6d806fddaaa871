"""Images that are there twice: exactly (the same bytes) or nearly (resized, saved again, slightly edited).

Two images are near duplicates where their difference hashes differ in at most `BITS` of 64 and their features have a
cosine of at least `COSINE`. On twelve scene photographs, saving at JPEG quality 30 and halving the size changes up to 4
bits and leaves a cosine of 0.67; hashes alone confuse plain scenes (sea and sky), which the features tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from osp.photos.features import Features

BITS = 8
COSINE = 0.6
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
    keys = [*labeled.keys, *pile.keys]
    first: dict[str, int] = {}
    parent = [first.setdefault(key, i) for i, key in enumerate(keys)]

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    unique = np.array(sorted(first.values()), dtype=np.int64)
    features = np.concatenate([labeled.rows(), pile.rows()])[unique]

    hashes = np.concatenate([labeled.hashes(), pile.hashes()])[unique]
    for one, other in _similar(features, hashes):
        i, j = root(int(unique[one])), root(int(unique[other]))
        parent[max(i, j)] = min(i, j)
    groups: dict[int, list[int]] = {}
    for i in range(len(keys)):
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


def _similar(features: np.ndarray, hashes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of rows with close hashes and a large cosine, a block of rows at a time."""
    bits = np.unpackbits(hashes.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1).astype(np.float32) * 2 - 1
    for left in range(0, len(bits), _CHUNK):
        for right in range(left, len(bits), _CHUNK):
            agree = bits[left : left + _CHUNK] @ bits[right : right + _CHUNK].T  # 64 - 2 x differing bits
            pairs = np.argwhere(agree >= 64 - 2 * BITS) + np.array([left, right])
            for one, other in pairs[pairs[:, 0] < pairs[:, 1]]:
                a, b = features[one].astype(np.float32), features[other].astype(np.float32)
                if a @ b >= COSINE * np.linalg.norm(a) * np.linalg.norm(b):
                    yield int(one), int(other)
