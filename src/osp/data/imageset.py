"""ImageSet: every source of images becomes one of these."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class ImageSet:
    """Images of one set, as one uint8 array N×C×H×W (in memory or memory-mapped), C being 1 or 3."""

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    """int64, one class number an image; -1 where the class is unknown; None where no image has a class."""
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

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width
