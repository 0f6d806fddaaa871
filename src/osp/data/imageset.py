"""ImageSet: every source of images becomes one of these."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


class PixelKey:
    """A hash over pixels, fed piece by piece in order: the same whatever the pieces, and computed while decoding.

    BLAKE2b, about a gigabyte per second: CIFAR-10's 150 MB take a sixth of a second, 20,000 images of 224x224 (3 GB)
    three seconds, which decoding them takes many times over.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, images: np.ndarray) -> None:
        """Add uint8 images."""
        step = max(1, (1 << 22) // max(1, images[:1].nbytes))  # a memory map is never read at once
        for start in range(0, len(images), step):
            self._hash.update(np.ascontiguousarray(images[start : start + step]).data)

    def hexdigest(self) -> str:
        """The hash of everything added."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class ImageSet:
    """Images of one set, as one uint8 array N×C×H×W (in memory or memory-mapped), C being 1 or 3."""

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    """int64, one class number per image; -1 where the class is unknown; None where no image has a class."""
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to [0, 1]: the published values, or computed for folders."""
    std: tuple[float, ...]
    variant: str | None = None
    """How the files differ from the published ones; carried into every result as `data_variant`."""
    mirror: bool = True
    """Whether a mirrored image still shows the same class: false for digits."""
    cutout: bool = True
    """Whether the strong view may grey out a square: false for digits, which it can turn into others."""
    files: tuple[str, ...] | None = field(default=None, repr=False)
    """Where each image came from, for sets that are folders of files."""
    skipped: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Files left out because they could not be read, each with the reason."""
    left_out: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Files left out because the same image is there elsewhere, each with where."""
    pixels: str | None = field(default=None, repr=False)
    """The images' `PixelKey` where it was computed while they were decoded."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @cached_property
    def content_key(self) -> str:
        """32 hex digits over shape, pixels and labels: two sets with the same key hold the same images in one order."""
        key = self.pixels
        if key is None:
            computed = PixelKey()
            computed.update(self.images)
            key = computed.hexdigest()
        whole = hashlib.blake2b(repr((self.images.shape, key)).encode(), digest_size=16)
        if self.labels is not None:
            whole.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return whole.hexdigest()
