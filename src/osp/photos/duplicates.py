"""Images that are there twice: exactly (the same bytes) or nearly (resized, saved again, slightly edited).

Two images are near duplicates where the differences between neighboring pixels of their thumbnails (17x17, grey) have
a correlation of at least `ALIKE`: a difference hash that keeps the sizes of the differences. A hash of their signs
alone cannot separate one sea under one sky from another, and features of the backbone change more when an image is
saved again at a low quality than between two images of the same kind.

Photos of a fixed camera (time-lapse, trail camera) are alike one after another: a group of more than `MOST_NEAR`
different images falls apart into its exact duplicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from osp.photos.features import Features

ALIKE = 0.9
MOST_NEAR = 8
"""Different images of a group. More are what a fixed camera has seen, and each of them counts."""
_CHUNK = 1024


@dataclass(frozen=True)
class Twins:
    """Images that count as one: positions among the labeled images, and in the pile."""

    labeled: tuple[int, ...]
    pile: tuple[int, ...]
    exact: bool
    """All have the same bytes."""


@dataclass(frozen=True)
class Duplicates:
    """All groups of two or more."""

    groups: tuple[Twins, ...]
    scenes: tuple[int, ...] = ()
    """Photos in each of the groups that were too large, and fell apart into exact duplicates."""

    @property
    def in_both(self) -> tuple[Twins, ...]:
        """Labeled images that also lie in the pile."""
        return tuple(group for group in self.groups if group.labeled and group.pile)

    def pile_once(self, size: int) -> np.ndarray:
        """Positions in a pile of this size, each image counted once and those that are labeled not at all."""
        extra = {i for group in self.groups for i in (group.pile if group.labeled else group.pile[1:])}
        return np.array([i for i in range(size) if i not in extra], dtype=np.int64)


def find_duplicates(labeled: Features, pile: Features) -> Duplicates:
    """Exact and near duplicates among labeled images and pile."""
    keys = [*labeled.keys, *pile.keys]
    _, first, content = np.unique(keys, return_index=True, return_inverse=True)
    scene = _joined(np.concatenate([labeled.thumbnails(), pile.thumbnails()])[first])
    wide = np.flatnonzero(np.bincount(scene, minlength=len(first)) > MOST_NEAR)
    alone = np.isin(scene, wide)
    photos = np.bincount(scene[content], minlength=len(first))[wide]
    group = np.where(alone, len(first) + np.arange(len(first)), scene)[content]
    groups: dict[int, list[int]] = {}
    for i, number in enumerate(group.tolist()):
        groups.setdefault(number, []).append(i)
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
        ),
        tuple(photos.tolist()),
    )


def differences(thumbnails: np.ndarray) -> np.ndarray:
    """Differences to the right and lower neighbors, one row of length one per image; zero for a plain surface."""
    grey = thumbnails.astype(np.float32)
    corner = grey[:, :-1, :-1]
    pair = np.stack([grey[:, :-1, 1:] - corner, grey[:, 1:, :-1] - corner], axis=1)
    rows = pair.reshape(len(grey), math.prod(pair.shape[1:]))
    unit: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def _joined(thumbnails: np.ndarray) -> np.ndarray:
    """The first image of each image's group: of all that are alike, or alike to what is."""
    root = np.arange(len(thumbnails))
    for pairs in _similar(thumbnails):
        while len(pairs := pairs[root[pairs[:, 0]] != root[pairs[:, 1]]]):  # in Python, pair by pair, it takes minutes
            ends = root[pairs]
            np.minimum.at(root, ends.max(axis=1), ends.min(axis=1))
            while ((above := root[root]) != root).any():
                root = above
    return root


def _similar(thumbnails: np.ndarray) -> Iterator[np.ndarray]:
    """Pairs of images with a large correlation, n×2, a block at a time.

    The differences of a block are worked out each time that it is its turn, which costs little beside the products:
    those of all images at once would be seven times as large as the thumbnails.
    """
    for left in range(0, len(thumbnails), _CHUNK):
        rows = differences(thumbnails[left : left + _CHUNK])
        for right in range(left, len(thumbnails), _CHUNK):
            alike = rows @ differences(thumbnails[right : right + _CHUNK]).T >= ALIKE
            pairs = np.argwhere(alike) + np.array([left, right])
            yield pairs[pairs[:, 0] < pairs[:, 1]]
