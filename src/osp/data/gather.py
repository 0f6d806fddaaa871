"""Images by index from one or more arrays, as if they were one: the ID set followed by the OOD source.

In place of an array there may be a `ByRow`, which reads its images when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch

from osp.data.by_row import ByRow

Pixels = np.ndarray | ByRow


class Images:
    """A virtual concatenation of uint8 N×C×H×W arrays, in memory or memory-mapped; nothing is copied to build it."""

    def __init__(self, parts: Pixels | Sequence[Pixels]) -> None:
        self.parts: tuple[Pixels, ...] = (parts,) if isinstance(parts, np.ndarray | ByRow) else tuple(parts)
        if not self.parts:
            raise ValueError("at least one array of images is needed")
        for part in self.parts:
            if part.dtype != np.uint8 or part.ndim != 4:
                raise ValueError(f"images must be uint8 N×C×H×W, not {part.dtype} {part.shape}")
            if part.shape[1:] != self.parts[0].shape[1:]:
                raise ValueError(
                    f"images differ in shape: {self.parts[0].shape[1:]} and {part.shape[1:]}; match the channels "
                    "with match(), load both sets at one size"
                )
        # A memory map's own indexing makes a memory map of each result; a plain view of the same memory does not.
        self.parts = tuple(part if isinstance(part, ByRow) else part.view(np.ndarray) for part in self.parts)
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.parts[0].shape
        return channels, height, width

    @property
    def shards(self) -> np.ndarray | None:
        """The first image of each piece that is best read at a stretch; None where it makes no difference."""
        if not any(isinstance(part, ByRow) for part in self.parts):
            return None
        firsts = self._ends - [len(part) for part in self.parts]
        starts = (part.starts if isinstance(part, ByRow) else np.zeros(1, np.int64) for part in self.parts)
        return np.concatenate([first + each for first, each in zip(firsts, starts, strict=True)])

    def take(self, indices: np.ndarray | torch.Tensor | Sequence[int]) -> torch.Tensor:
        """The images at these indices, in this order, as a new uint8 tensor on the CPU."""
        index = _as_index(indices)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"image {index.min()} to {index.max()} asked for, of {len(self)}")
        if len(self.parts) == 1:
            return torch.from_numpy(_rows(self.parts[0], index))
        owner = np.searchsorted(self._ends, index, side="right")
        out = np.empty((len(index), *self.shape), np.uint8)
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(owner == number)
            if here.size:
                out[here] = _rows(part, index[here] - (self._ends[number] - len(part)))
        return torch.from_numpy(out)


def _as_index(indices: np.ndarray | torch.Tensor | Sequence[int]) -> np.ndarray:
    array = indices.cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise IndexError(f"a row of whole numbers is needed, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64, copy=False)


def _rows(part: Pixels, index: np.ndarray) -> np.ndarray:
    if isinstance(part, ByRow):
        return part.take(index)
    # take() copies whole images, but would first copy all of an array that is not contiguous (a repeated grey channel).
    if part.flags.c_contiguous:
        return np.take(part, index, axis=0)
    return np.ascontiguousarray(part[index])


@overload
def match(images: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray: ...


@overload
def match(images: ByRow, shape: tuple[int, int, int]) -> ByRow: ...


def match(images: Pixels, shape: tuple[int, int, int]) -> Pixels:
    """`images` with the channels of `shape`: grey repeated (without a copy), or luminance as Pillow's `L` has it.

    Sizes are not changed: resizing well needs the original files, so the loader is asked for it.
    """
    channels, height, width = shape
    if images.shape[2:] != (height, width):
        raise ValueError(
            f"images are {images.shape[2]}×{images.shape[3]}, not {height}×{width}: load them at that size"
        )
    have = images.shape[1]
    if have == channels:
        return images
    if isinstance(images, ByRow):
        return images.changed(lambda rows: match(rows, shape), channels)
    if have == 1:
        return np.broadcast_to(images, (len(images), *shape))
    if have == 3 and channels == 1:
        grey = np.empty((len(images), 1, height, width), np.uint8)
        for first in range(0, len(images), 1024):  # in pieces: the sums need four bytes a value
            red, green, blue = (images[first : first + 1024, c].astype(np.uint32) for c in range(3))
            grey[first : first + 1024, 0] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
        return grey
    raise ValueError(f"images have {have} channels, not {channels}")
