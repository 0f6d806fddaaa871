"""Image sets made from listed files: decoded once into one array, and mapped ever after."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.folders import HEIF_EXTENSIONS, File, LabeledFiles, has_heif
from osp.data.images import ImageSet, PixelSummary, moments
from osp.data.source import Description, Progress, Request, Source, always, per_class
from osp.errors import UserError, first_few

SIZE = 32  # pixels a side where the user does not say


def decoded(
    request: Request,
    folder: Path,
    parts: Sequence[tuple[Sequence[File], np.ndarray | None]],
    class_names: tuple[str, ...] = (),
    **facts: Any,
) -> list[ImageSet]:
    """One set for each part (files, and their classes or None) at the size asked for, all with these facts.

    Files are decoded at the first call and when one has changed, into one memory-mapped array. Those that give no image
    are left out, and warned of. Mean and standard deviation are those of the first part, where `facts` has no others.
    """
    size, files = request.size or SIZE, [file for part, _ in parts for file in part]
    mark = hashlib.blake2b(digest_size=16)
    mark.update(repr([len(part) for part, _ in parts]).encode())
    text = "\n".join([f"{file[0]}|{file[1]}|{file[2]}|{file[3]}" for file in files])
    mark.update(text.encode("utf-8", "surrogateescape"))
    if any(file.path.lower().endswith(HEIF_EXTENSIONS) for file in files):
        mark.update(b"heif" if has_heif() else b"no heif")

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        paths = [[file.path for file in part] for part, _ in parts]
        return _decode(writer, paths, size, request.progress, f"Decoding {folder.name or request.name}")

    entry = cache.cached(request.name, f"{folder}|{size}", mark.hexdigest(), (3, size, size), build)
    reasons = {int(position): str(reason) for position, reason in entry.notes["skipped"]}
    facts = {name: tuple(entry.notes[name]) for name in ("mean", "std")} | facts
    keys = entry.notes.get("pixels") or [None] * len(parts)  # older entries have none
    sets: list[ImageSet] = []
    start = row = 0
    for (part, labels), key in zip(parts, keys, strict=True):
        skipped = tuple((part[i - start].path, why) for i, why in reasons.items() if start <= i < start + len(part))
        kept = np.array([i for i in range(len(part)) if start + i not in reasons], dtype=np.int64)
        facts |= {"files": tuple(part[i].path for i in kept), "skipped": skipped, "pixels": key}
        images, own = entry.images[row : row + len(kept)], None if labels is None else labels[kept]
        sets.append(ImageSet(request.name, images, own, class_names, **facts))
        start, row = start + len(part), row + len(kept)
    if reasons:
        listed = [f"{os.path.relpath(path, folder)}: {why}" for each in sets for path, why in each.skipped]
        rest = ", all of them listed in the ImageSet's `skipped`" if len(listed) > 5 else ""
        warnings.warn(
            f"{len(listed)} of {len(files)} images in {folder} could not be read and were left out "
            f"({first_few(listed)}{rest}).",
            UserWarning,
            stacklevel=2,
        )
    return sets


def _decode(
    writer: cache.ArrayWriter, parts: list[list[str]], size: int, progress: Progress | None, text: str
) -> dict[str, Any]:
    from osp.data.decode_pool import decode_all

    total, start = sum(map(len, parts)), 0
    skipped: list[tuple[int, str]] = []
    summaries = [PixelSummary() for _ in parts]
    for paths, summary in zip(parts, summaries, strict=True):
        done = start
        for images, missing in decode_all(paths, size, total):
            writer.append(images)
            summary.update(images)
            skipped += [(start + position, reason) for position, reason in missing]
            done += len(images) + len(missing)
            if progress:
                progress(done, total, text)
        start += len(paths)
    mean, std = moments(summaries[0].levels)
    return {"skipped": skipped, "mean": mean, "std": std, "pixels": [each.hexdigest() for each in summaries]}


def check_classes(images: ImageSet, folders: Sequence[str], root: Path) -> None:
    """Refuse a set in which a class, which has such a folder below `root`, has no image left."""
    if images.labels is None or 0 not in (counts := per_class(images.labels, len(folders))):
        return
    empty = folders[counts.index(0)]
    left_out = (*images.skipped, *images.left_out)
    why = "".join(f" ({path}: {reason})" for path, reason in left_out if empty in Path(path).parts)
    raise UserError(
        f"The class {empty!r} in {root} has no image left{why[:300]}. "
        "Put images into its folder, or take the folder away."
    )


def describe_files(request: Request, listed: LabeledFiles) -> Description:
    """Counts of files; those that cannot be read are found only by `load_files`."""
    labels, is_test = np.array(listed.labels, np.int64), np.array(listed.is_test, bool)
    side, test = request.size or SIZE, labels[is_test] if is_test.any() else None
    facts = {"shape": (3, side, side), "notes": tuple(listed.notes)}
    return Description.of(request.name, listed.classes, labels[~is_test], test, **facts)


def load_files(request: Request, listed: LabeledFiles) -> tuple[ImageSet, ImageSet | None]:
    """The training and the test set; None where no test image was set aside."""
    for note in listed.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    labels, is_test = np.array(listed.labels, np.int64), np.array(listed.is_test, bool)
    rows = [np.flatnonzero(~is_test), np.flatnonzero(is_test)][: 2 if is_test.any() else 1]
    parts = [([listed.files[i] for i in each], labels[each] if listed.classes else None) for each in rows]
    sets = decoded(request, request.root, parts, listed.classes)
    train = replace(sets[0], left_out=tuple(listed.left_out))
    if not len(train):
        path, reason = (train.skipped or train.left_out)[0]
        raise UserError(f"None of the images in {request.root} could be read ({path}: {reason}).")
    check_classes(train, listed.classes, request.root)
    return train, sets[1] if len(sets) > 1 and len(sets[1]) else None


def own_images(list_files: Callable[[Path], LabeledFiles], how: str, unsorted: bool = False) -> Source:
    """What a file of `osp/data/sources` declares for a folder of the user's own: what is in it, and how to name it."""
    return Source(
        load=lambda request: load_files(request, list_files(request.root)),
        describe=lambda request: describe_files(request, list_files(request.root)),
        look=always("any folder of images", None, None, (3, SIZE, SIZE), how),
        own_folder=True,
        unsorted=unsorted,
    )
