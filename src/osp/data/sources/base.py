"""What several sources share; no data set itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from osp.data import cache
from osp.errors import UserError
from osp.machine import in_gigabytes, memory


def check_root(root: Path, must_exist: bool = False) -> None:
    """Refuse a data folder that is a file, cannot be read, or (where it must hold files already) is missing."""
    try:
        with os.scandir(root):
            return
    except NotADirectoryError:
        raise UserError(f"The data folder {root} is a file. Name the folder that holds the data.") from None
    except PermissionError:
        raise UserError(f"The data folder {root} cannot be read: permission denied.") from None
    except FileNotFoundError:
        if must_exist:
            raise UserError(f"The data folder {root} does not exist.") from None
    except OSError as error:
        raise UserError(f"The data folder {root} cannot be read: {error.strerror or error}.") from None


def find_folder(root: Path, names: Sequence[str], has: Callable[[Path], bool]) -> Path | None:
    """The first of root/name, and root itself, that holds what `has` looks for."""
    check_root(root)
    return next((folder for folder in [*(root / name for name in names), root] if has(folder)), None)


def variant_of(folder: Path, published: Mapping[str, str] | None = None, compute: bool = True) -> str | None:
    """How a folder differs from the published one: its VARIANT.txt, else files whose MD5 is not the published one."""
    try:
        text = (folder / "VARIANT.txt").read_text("utf-8", errors="replace")
        if line := " ".join(text.split()):
            return line
    except OSError:
        pass
    wrong = []
    for name, md5 in (published or {}).items():
        if (folder / name).is_file() and cache.md5_of(folder / name, compute=compute) not in (md5, None):
            wrong.append(name)
    return differs(wrong)


def differs(names: Sequence[str]) -> str | None:
    """The line that stands for files with a wrong checksum."""
    return f"not as published (checksum): {', '.join(names)}" if names else None


def check_labels(labels: np.ndarray, classes: int, path: Path) -> np.ndarray:
    """Labels as int64, refused where one is no class number."""
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise UserError(f"{path} holds the label {wrong}, but its classes are 0 to {classes - 1}. Fetch it again.")
    return np.ascontiguousarray(labels, dtype=np.int64)


def resized(images: np.ndarray, size: int | None) -> np.ndarray:
    """Images at the size asked for, if one was."""
    if size is None or images.shape[2:] == (size, size):
        return images
    check_room(len(images) * images.shape[1] * size * size, f"{len(images):,} images of {size}x{size}")
    from osp.data.decode import resize_batch

    return resize_batch(images, size)


def check_room(count: int, what: str) -> None:
    """Refuse what would not fit into memory, before it is made."""
    have = memory()
    if have is not None and count > have // 2:
        raise UserError(
            f"{what} take {in_gigabytes(count)}; this machine has {in_gigabytes(have)}. Set a smaller image_size."
        )


def moments(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, of pixels scaled to [0, 1]."""
    return moments_of_histogram(histogram(images))


def histogram(images: np.ndarray) -> np.ndarray:
    """How often each value occurs in each channel: C x 256, exact, and can be summed over parts."""
    channels = range(images.shape[1])
    return np.stack([np.bincount(images[:, channel].reshape(-1), minlength=256) for channel in channels])


def moments_of_histogram(counts: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation from `histogram`; a constant channel gets one grey level, to divide by."""
    values = np.arange(256) / 255
    total = np.maximum(counts.sum(axis=1), 1)
    mean = counts @ values / total
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    std = np.maximum(np.sqrt(variance), 1 / 255)
    return tuple(round(float(m), 4) for m in mean), tuple(round(float(s), 4) for s in std)
