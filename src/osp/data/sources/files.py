"""Sets that are folders of image files: list them, decode them once, and map the result ever after."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from osp.data import cache
from osp.data.decode import EXTENSIONS, HEIF_EXTENSIONS
from osp.data.sources.base import Progress, histogram, moments_of_histogram
from osp.errors import UserError

_IMAGES = EXTENSIONS + HEIF_EXTENSIONS
_NOT_CLASSES = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "__pycache__")
DEPTH = 8
"""How deep folders are searched: enough for any sorted pile, and an end for links that go round."""


class File(NamedTuple):
    """A file, and what shows that it was changed."""

    path: str
    size: int
    modified: int
    changed: int
    """On Unix this also tells that a file has become readable."""


def subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted."""
    with _scan(str(folder)) as entries:
        found = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return sorted(name for name in found if name not in _NOT_CLASSES)


def list_images(folder: Path | str, deep: bool = False) -> list[File]:
    """The visible files with an image's extension, sorted by path; with `deep`, those in folders below too."""
    found: list[File] = []
    _collect(str(folder), found, DEPTH if deep else 0)
    found.sort()
    return found


def _collect(folder: str, found: list[File], depth: int) -> None:
    below = []
    with _scan(folder) as entries:
        for entry in entries:
            name = entry.name
            if name[0] == ".":
                continue
            if name.lower().endswith(_IMAGES) and not entry.is_dir():
                try:
                    status = entry.stat()
                except OSError:  # a link to nowhere: listed among the unreadable
                    found.append(File(entry.path, -1, 0, 0))
                    continue
                found.append(File(entry.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
            elif depth and name not in _NOT_CLASSES and entry.is_dir():
                below.append(entry.path)
    for path in below:
        _collect(path, found, depth - 1)


def _scan(folder: str) -> Any:
    try:
        return os.scandir(folder)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read: {error.strerror or error}.") from None


@dataclass(frozen=True)
class Part:
    """The images of one part (training or test) of a set of files."""

    images: np.ndarray
    kept: np.ndarray
    """Which of the part's files these are."""
    files: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]


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
        mark.update(b"heif" if _has_heif() else b"no heif")
    first = len(parts[0])

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        return _decode(writer, [file.path for file in files], first, size, progress, f"Decoding {folder.name or label}")

    entry = cache.cached(label, f"{folder}|{size}", mark.hexdigest(), (3, size, size), build)
    reasons = {int(position): str(reason) for position, reason in entry.notes["skipped"]}
    result, start, row = [], 0, 0
    for part in parts:
        kept = np.array([i for i in range(len(part)) if start + i not in reasons], dtype=np.int64)
        skipped = tuple((part[i - start].path, reasons[i]) for i in reasons if start <= i < start + len(part))
        paths = tuple([part[i].path for i in kept] if skipped else [file.path for file in part])
        result.append(Part(entry.images[row : row + len(kept)], kept, paths, skipped))
        start, row = start + len(part), row + len(kept)
    everything = Decoded(tuple(result), tuple(entry.notes["mean"]), tuple(entry.notes["std"]))
    _warn(folder, everything, len(files))
    return everything


def _decode(
    writer: cache.ArrayWriter, paths: list[str], first: int, size: int, progress: Progress | None, text: str
) -> dict[str, Any]:
    from osp.data.decode_pool import decode_all

    skipped: list[tuple[int, str]] = []
    counts = np.zeros((3, 256), np.int64)
    done = 0
    for images, missing in decode_all(paths, size):
        begin, done = done, done + len(images) + len(missing)
        of_first = len(images)
        if done > first:  # the chunk reaches into the second part
            of_first = max(0, first - begin - sum(position < first for position, _ in missing))
        counts += histogram(images[:of_first])
        writer.append(images)
        skipped += missing
        if progress:
            progress(done, len(paths), text)
    mean, std = moments_of_histogram(counts)
    return {"skipped": skipped, "mean": mean, "std": std}


def _has_heif() -> bool:
    from importlib.util import find_spec

    return find_spec("pillow_heif") is not None


def _warn(folder: Path, result: Decoded, total: int) -> None:
    if not result.skipped:
        return
    listed = [(path, reason) for part in result.parts for path, reason in part.skipped]
    shown = "; ".join(f"{os.path.relpath(path, folder)}: {reason}" for path, reason in listed[:5])
    more = f"; and {len(listed) - 5} more" if len(listed) > 5 else ""
    warnings.warn(
        f"{len(listed)} of {total} images in {folder} could not be read and were left out ({shown}{more}).",
        UserWarning,
        stacklevel=2,
    )


def check_classes(labels: np.ndarray, class_names: Sequence[str], folder: Path, part: Part) -> None:
    """Refuse a set in which a class has no image left."""
    counts = np.bincount(labels[labels >= 0], minlength=len(class_names))
    if counts.all():
        return
    empty = class_names[int(np.flatnonzero(counts == 0)[0])]
    why = "".join(f" ({path}: {reason})" for path, reason in part.skipped if empty in Path(path).parts)
    raise UserError(
        f"The class {empty!r} in {folder} has no image left{why[:300]}. "
        "Put images into its folder, or take the folder away."
    )
