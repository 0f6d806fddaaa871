"""Image files decoded once into one array, and mapped ever after."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.imageset import PixelKey
from osp.data.listing import HEIF_EXTENSIONS, File, has_heif
from osp.data.source import Progress
from osp.data.sources.base import histogram, moments_of_histogram
from osp.errors import UserError


@dataclass(frozen=True)
class Part:
    """The images of one part (training or test) of a set of files."""

    images: np.ndarray
    kept: np.ndarray
    """Which of the part's files these are."""
    files: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    pixels: str | None
    """The images' `PixelKey`; None where they were decoded by a version that did not note it."""


@dataclass(frozen=True)
class Decoded:
    """All parts, and mean and standard deviation of the first."""

    parts: tuple[Part, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def skipped(self) -> int:
        """How many files gave no image."""
        return sum(len(part.skipped) for part in self.parts)


def decoded(label: str, folder: Path, parts: Sequence[Sequence[File]], size: int, progress: Progress | None) -> Decoded:
    """The images of the listed files at size x size, decoded at the first call and again when a file has changed.

    The parts lie one after the other in one memory-mapped array. Files that give no image are left out, and warned of.
    """
    files = [file for part in parts for file in part]
    mark = hashlib.blake2b(digest_size=16)
    mark.update(repr([len(part) for part in parts]).encode())
    text = "\n".join([f"{file[0]}|{file[1]}|{file[2]}|{file[3]}" for file in files])
    mark.update(text.encode("utf-8", "surrogateescape"))
    if any(file.path.lower().endswith(HEIF_EXTENSIONS) for file in files):
        mark.update(b"heif" if has_heif() else b"no heif")
    ends = np.cumsum([len(part) for part in parts]).tolist()

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        return _decode(writer, [file.path for file in files], ends, size, progress, f"Decoding {folder.name or label}")

    entry = cache.cached(label, f"{folder}|{size}", mark.hexdigest(), (3, size, size), build)
    reasons = {int(position): str(reason) for position, reason in entry.notes["skipped"]}
    keys = entry.notes.get("pixels") or [None] * len(parts)
    result, start, row = [], 0, 0
    for part, key in zip(parts, keys, strict=True):
        kept = np.array([i for i in range(len(part)) if start + i not in reasons], dtype=np.int64)
        skipped = tuple((part[i - start].path, reasons[i]) for i in reasons if start <= i < start + len(part))
        paths = tuple([part[i].path for i in kept] if skipped else [file.path for file in part])
        result.append(Part(entry.images[row : row + len(kept)], kept, paths, skipped, key))
        start, row = start + len(part), row + len(kept)
    everything = Decoded(tuple(result), tuple(entry.notes["mean"]), tuple(entry.notes["std"]))
    _warn(folder, everything, len(files))
    return everything


def _decode(
    writer: cache.ArrayWriter, paths: list[str], ends: list[int], size: int, progress: Progress | None, text: str
) -> dict[str, Any]:
    from osp.data.decode_pool import decode_all

    skipped: list[tuple[int, str]] = []
    counts = np.zeros((3, 256), np.int64)
    keys = [PixelKey() for _ in ends]
    done = 0
    for images, missing in decode_all(paths, size):
        begin, done = done, done + len(images) + len(missing)
        for part, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
            # rows of this chunk that belong to the part; a chunk may reach into the next
            low, high = (max(begin, min(edge, done)) for edge in (first, end))
            row = slice(*(edge - begin - sum(position < edge for position, _ in missing) for edge in (low, high)))
            keys[part].update(images[row])
            if part == 0:
                counts += histogram(images[row])
        writer.append(images)
        skipped += missing
        if progress:
            progress(done, len(paths), text)
    mean, std = moments_of_histogram(counts)
    return {"skipped": skipped, "mean": mean, "std": std, "pixels": [key.hexdigest() for key in keys]}


def _warn(folder: Path, result: Decoded, total: int) -> None:
    if not result.skipped:
        return
    listed = [(path, reason) for part in result.parts for path, reason in part.skipped]
    shown = "; ".join(f"{os.path.relpath(path, folder)}: {reason}" for path, reason in listed[:5])
    more = f"; and {len(listed) - 5} more, all of them listed in the ImageSet's `skipped`" if len(listed) > 5 else ""
    warnings.warn(
        f"{len(listed)} of {total} images in {folder} could not be read and were left out ({shown}{more}).",
        UserWarning,
        stacklevel=2,
    )


def check_classes(
    labels: np.ndarray, class_names: Sequence[str], folder: Path, without: Sequence[tuple[str, str]]
) -> None:
    """Refuse a set in which a class has no image left."""
    counts = np.bincount(labels[labels >= 0], minlength=len(class_names))
    if counts.all():
        return
    empty = class_names[int(np.flatnonzero(counts == 0)[0])]
    why = "".join(f" ({path}: {reason})" for path, reason in without if empty in Path(path).parts)
    raise UserError(
        f"The class {empty!r} in {folder} has no image left{why[:300]}. "
        "Put images into its folder, or take the folder away."
    )
