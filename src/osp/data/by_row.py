"""Images that are read when they are asked for, in place of an array: a pool may be larger than memory and disk cache.

It has the shape and type of an array and gives arrays by row; what would read all of it at once is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np


class ByRow(ABC):
    """uint8 N×C×H×W, read by row."""

    dtype = np.dtype(np.uint8)
    ndim = 4
    starts: np.ndarray
    """The first row of each file: rows of one file are best read one after the other."""

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

    def changed(self, change: Callable[[np.ndarray], np.ndarray], channels: int) -> ByRow:
        """These images with something done to whatever is taken of them."""
        return _Changed(self, change, channels)

    def as_array(self) -> np.ndarray:
        """Itself, as what it stands for: an `ImageSet` has arrays, and is read by row through `osp.data.gather`."""
        return cast(np.ndarray, self)


class _Changed(ByRow):
    def __init__(self, images: ByRow, change: Callable[[np.ndarray], np.ndarray], channels: int) -> None:
        count, _, height, width = images.shape
        super().__init__((count, channels, height, width))
        self._images, self._change, self.starts = images, change, images.starts

    def take(self, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._change(self._images.take(rows)))
