"""Gaussian noise, N(0.5, 1) clipped to [0, 1]: OOD images that show nothing; and uniform noise, made the same way.

Drawn from raw Philox bits (which NumPy guarantees never to change) through a table of the distribution's quantiles,
so that a seed gives the same pixels on any machine and under any version.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from osp.data.images import ImageSet, levels, moments
from osp.data.source import Description, Request, Source, always

TRAIN, TEST, SIZE = 10_000, 2_000, 32


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """10,000 images for the pool and 2,000 others for the test."""
    name, size = request.name, request.size or SIZE
    table = _quantiles(name)
    parts = [
        table[_bits16(count * 3 * size * size, request.seed, name, part)].reshape(count, 3, size, size)
        for part, count in (("train", TRAIN), ("test", TEST))
    ]
    mean, std = moments(levels(parts[0]))
    train, test = (ImageSet(name, images, None, (), mean, std) for images in parts)
    return train, test


def _quantiles(name: str) -> np.ndarray:
    """The grey level of each of 65,536 equally likely draws."""
    at = (np.arange(65536) + 0.5) / 65536
    if name == "uniform":
        values = at
    else:
        normal = NormalDist(0.5, 1.0)
        values = np.clip([normal.inv_cdf(p) for p in at], 0, 1)
    return np.rint(values * 255).astype(np.uint8)


def _bits16(count: int, *key: int | str) -> np.ndarray:
    from osp.randomness import key_to_seed

    raw = np.random.Philox(key_to_seed(*key)).random_raw((count + 3) // 4)
    return raw.astype("<u8").view("<u2")[:count]


def describe(request: Request) -> Description:
    """Known beforehand."""
    side = request.size or SIZE
    return Description(request.name, (), (), (), (3, side, side), train_unknown=TRAIN, test_unknown=TEST)


SOURCE = Source(
    load=load, describe=describe, look=always("made from the seed", TRAIN, TEST, (3, SIZE, SIZE), "nothing to do")
)
