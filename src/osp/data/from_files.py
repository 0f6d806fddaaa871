"""Image sets made from listed files: decoded once into one array, and mapped ever after."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.folders import HEIF_EXTENSIONS, File, LabeledFiles, has_heif
from osp.data.images import ImageSet, PixelSummary, moments
from osp.data.source import Description, Progress, Request, Source, SourceInfo, per_class
from osp.errors import UserError, first_few

SIZE = 32
"""Pixels a side where the user does not say."""


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

    def image_set(self, request: Request, labels: np.ndarray | None, names: tuple[str, ...], **more: Any) -> ImageSet:
        """These images with their classes, given one label per file, readable or not; more facts by name."""
        own = None if labels is None else labels[self.kept]
        facts = {"files": self.files, "skipped": self.skipped, "pixels": self.pixels, **more}
        return ImageSet(request.name, self.images, own, names, **facts)


@dataclass(frozen=True)
class Decoded:
    """All parts, and `moments` of the first."""

    parts: tuple[Part, ...]
    moments: dict[str, tuple[float, ...]]
    """`mean` and `std`."""


def decoded(request: Request, folder: Path, parts: Sequence[Sequence[File]]) -> Decoded:
    """The images of the listed files at the size asked for, decoded at the first call and when a file has changed.

    The parts lie one after the other in one memory-mapped array. Files that give no image are left out, and warned of.
    """
    label, size = request.name, request.size or SIZE
    files = [file for part in parts for file in part]
    mark = hashlib.blake2b(digest_size=16)
    mark.update(repr([len(part) for part in parts]).encode())
    text = "\n".join([f"{file[0]}|{file[1]}|{file[2]}|{file[3]}" for file in files])
    mark.update(text.encode("utf-8", "surrogateescape"))
    if any(file.path.lower().endswith(HEIF_EXTENSIONS) for file in files):
        mark.update(b"heif" if has_heif() else b"no heif")
    ends = np.cumsum([len(part) for part in parts]).tolist()

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        text = f"Decoding {folder.name or label}"
        return _decode(writer, [file.path for file in files], ends, size, request.progress, text)

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
    everything = Decoded(tuple(result), {name: tuple(entry.notes[name]) for name in ("mean", "std")})
    _warn(folder, everything, len(files))
    return everything


def _decode(
    writer: cache.ArrayWriter, paths: list[str], ends: list[int], size: int, progress: Progress | None, text: str
) -> dict[str, Any]:
    from osp.data.decode_pool import decode_all

    skipped: list[tuple[int, str]] = []
    keys = [PixelSummary() for _ in ends]
    done = 0
    for images, missing in decode_all(paths, size):
        begin, done = done, done + len(images) + len(missing)
        for part, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
            # rows of this chunk that belong to the part; a chunk may reach into the next
            low, high = (max(begin, min(edge, done)) for edge in (first, end))
            row = slice(*(edge - begin - sum(position < edge for position, _ in missing) for edge in (low, high)))
            keys[part].update(images[row])
        writer.append(images)
        skipped += missing
        if progress:
            progress(done, len(paths), text)
    mean, std = moments(keys[0].levels)
    return {"skipped": skipped, "mean": mean, "std": std, "pixels": [key.hexdigest() for key in keys]}


def _warn(folder: Path, result: Decoded, total: int) -> None:
    listed = [f"{os.path.relpath(path, folder)}: {reason}" for part in result.parts for path, reason in part.skipped]
    if listed:
        rest = ", all of them listed in the ImageSet's `skipped`" if len(listed) > 5 else ""
        warnings.warn(
            f"{len(listed)} of {total} images in {folder} could not be read and were left out "
            f"({first_few(listed)}{rest}).",
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


def describe_files(request: Request, listed: LabeledFiles) -> Description:
    """Counts of files; those that cannot be read are found only by `load_files`."""
    labels, is_test = np.array(listed.labels, np.int64), np.array(listed.is_test, bool)
    train, test = (per_class(labels[chosen], len(listed.classes)) for chosen in (~is_test, is_test))
    unknown, test_unknown = (int((labels[chosen] < 0).sum()) for chosen in (~is_test, is_test))
    side, tested, notes = request.size or SIZE, test if is_test.any() else None, tuple(listed.notes)
    return Description(request.name, listed.classes, train, tested, (3, side, side), unknown, test_unknown, notes)


def load_files(request: Request, listed: LabeledFiles) -> tuple[ImageSet, ImageSet | None]:
    """The training and the test set; None where no test image was set aside."""
    for note in listed.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    labels, is_test = np.array(listed.labels, np.int64), np.array(listed.is_test, bool)
    chosen = [np.flatnonzero(~is_test), np.flatnonzero(is_test)][: 2 if is_test.any() else 1]
    result = decoded(request, request.root, [[listed.files[i] for i in rows] for rows in chosen])
    train = result.parts[0]
    if not len(train.images):
        path, reason = (train.skipped or listed.left_out)[0]
        raise UserError(f"None of the images in {request.root} could be read ({path}: {reason}).")
    if listed.classes:
        without = (*train.skipped, *listed.left_out)
        check_classes(labels[chosen[0]][train.kept], listed.classes, request.root, without)
    sets = [
        part.image_set(request, labels[rows] if listed.classes else None, listed.classes, **result.moments)
        for rows, part in zip(chosen, result.parts, strict=True)
    ]
    return replace(sets[0], left_out=tuple(listed.left_out)), sets[1] if len(sets) > 1 and len(sets[1]) else None


def own_images(list_files: Callable[[Path], LabeledFiles], how: str, unsorted: bool = False) -> Source:
    """What a file of `osp/data/sources` declares for a folder of the user's own: what is in it, and how to name it."""
    return Source(
        load=lambda request: load_files(request, list_files(request.root)),
        describe=lambda request: describe_files(request, list_files(request.root)),
        look=lambda request: SourceInfo(request.name, True, "any folder of images", shape=(3, SIZE, SIZE), how=how),
        own_folder=True,
        unsorted=unsorted,
    )
