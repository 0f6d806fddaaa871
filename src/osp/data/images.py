"""Images as one uint8 array N×C×H×W: an `ImageSet` of one source, and `Images` by index out of several.

In place of an array there may be a `ByRow`, which reads its images when they are asked for. torch is imported only
when images are taken, so that listing and describing sets answers at once.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class PixelKey:
    """A hash over pixels, fed piece by piece in order: the same whatever the pieces, and computed while decoding."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, images: np.ndarray) -> None:
        step = max(1, (1 << 22) // max(1, images[:1].nbytes))  # a memory map is never read at once
        for start in range(0, len(images), step):
            self._hash.update(np.ascontiguousarray(images[start : start + step]).data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@dataclass(frozen=True)
class ImageSet:
    """Images of one set, as one uint8 array N×C×H×W (in memory or memory-mapped), C being 1 or 3."""

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    """int64, one class number per image; -1 where the class is unknown; None where no image has a class."""
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels scaled to [0, 1]: the published values, or computed for folders
    std: tuple[float, ...]
    variant: str | None = None
    """How the files differ from the published ones; carried into every result as `data_variant`."""
    mirror: bool = True  # whether a mirrored image still shows the same class: false for digits
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

    @property
    def classes(self) -> np.ndarray:
        """One class number per image, -1 where it is unknown."""
        return np.full(len(self), -1) if self.labels is None else np.maximum(self.labels, -1)

    @cached_property
    def content_key(self) -> str:
        """32 hex digits over shape, pixels and labels: two sets with the same key hold the same images in one order."""
        key = PixelKey()
        if self.pixels is None:
            key.update(self.images)
        whole = hashlib.blake2b(repr((self.images.shape, self.pixels or key.hexdigest())).encode(), digest_size=16)
        if self.labels is not None:
            whole.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return whole.hexdigest()


def levels(images: np.ndarray) -> np.ndarray:
    """How often each value occurs in each channel: C x 256, exact, and can be summed over parts."""
    channels = range(images.shape[1])
    return np.stack([np.bincount(images[:, channel].reshape(-1), minlength=256) for channel in channels])


def moments(counts: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, of pixels scaled to [0, 1], from `levels`.

    A constant channel gets one grey level as deviation, to divide by.
    """
    values = np.arange(256) / 255
    total = np.maximum(counts.sum(axis=1), 1)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    std = np.maximum(np.sqrt(variance), 1 / 255)
    return tuple(round(float(m), 4) for m in mean), tuple(round(float(s), 4) for s in std)


class PixelSummary(PixelKey):
    """A `PixelKey` that also counts the values of RGB images, for their mean and standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = np.zeros((3, 256), np.int64)

    def update(self, images: np.ndarray) -> None:
        super().update(images)
        self.levels += levels(images)


class ByRow(ABC):
    """uint8 N×C×H×W, read by row."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    starts: np.ndarray  # the first row of each file: rows of one file are best read one after the other

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        self.shape = shape

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """The images of these rows (int64), in this order."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """As an array: by number, slice, row of numbers or mask."""
        chosen = np.arange(len(self))[rows]
        return self.take(chosen) if np.ndim(chosen) else cast(np.ndarray, self.take(chosen[None])[0])

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{len(self)} images are not read into memory at once; take rows of them")

    def as_array(self) -> np.ndarray:
        """Itself, as what it stands for: an `ImageSet` has arrays, and is read by row through `Images`."""
        return cast(np.ndarray, self)


class _Matched(ByRow):
    """The same images with other channels."""

    def __init__(self, images: ByRow, shape: tuple[int, int, int]) -> None:
        super().__init__((len(images), *shape))
        self._images, self.starts = images, images.starts

    def take(self, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(match(self._images.take(rows), self.shape[1:]))


Pixels = np.ndarray | ByRow
P = TypeVar("P", np.ndarray, ByRow)


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

    def take(self, indices: np.ndarray | Tensor | Sequence[int]) -> Tensor:
        """The images at these indices, in this order, as a new uint8 tensor on the CPU."""
        import torch

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


def _as_index(indices: np.ndarray | Tensor | Sequence[int]) -> np.ndarray:
    array = np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices)
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


def match(images: P, shape: tuple[int, int, int]) -> P:
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
        return _Matched(images, shape)
    if have == 1:
        return np.broadcast_to(images, (len(images), *shape))
    if have == 3 and channels == 1:
        grey = np.empty((len(images), 1, height, width), np.uint8)
        for first in range(0, len(images), 1024):  # in pieces: the sums need four bytes a value
            red, green, blue = (images[first : first + 1024, c].astype(np.uint32) for c in range(3))
            grey[first : first + 1024, 0] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
        return grey
    raise ValueError(f"images have {have} channels, not {channels}")
