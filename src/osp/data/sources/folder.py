"""The user's own images: one folder a class, `train` and `test` folders of these, or a flat pile without classes.

`pile` is every image below a folder, at any depth: unsorted, so nothing is known of any of them.
Loose images beside class folders belong to the training set with the label -1 (class unknown).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from osp.data.imageset import ImageSet
from osp.data.sources.base import Request, SourceInfo, check_root
from osp.data.sources.files import Decoded, File, check_classes, decoded, list_images, subfolders
from osp.errors import UserError

SIZE = 32
TEST_FOLDERS = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class Listing:
    """Files of one part with their labels."""

    files: list[File]
    labels: list[int]


def load(name: str, request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Decode and resize once, to 32x32 if no size is given. Without a test folder a fixed fifth a class is the test."""
    root = request.root
    check_root(root, must_exist=True)
    class_names, train, test = _pile(root) if name == "pile" else _list(root)
    parts = [train, test] if test is not None else [train]
    result = decoded(name, root, [part.files for part in parts], request.size or SIZE, request.progress)
    if not len(result.parts[0].images):
        path, reason = result.parts[0].skipped[0]
        raise UserError(f"None of the images in {root} could be read ({path}: {reason}).")
    sets = [_image_set(name, root, class_names, part, result, index) for index, part in enumerate(parts)]
    return sets[0], sets[1] if len(sets) > 1 and len(sets[1]) else None


def _image_set(
    name: str, root: Path, class_names: tuple[str, ...], listing: Listing, result: Decoded, index: int
) -> ImageSet:
    part = result.parts[index]
    labels = np.array(listing.labels, dtype=np.int64)[part.kept] if class_names else None
    if labels is not None and index == 0:
        check_classes(labels, class_names, root, part)
    return ImageSet(
        name, part.images, labels, class_names, result.mean, result.std, files=part.files, skipped=part.skipped
    )


def _pile(root: Path) -> tuple[tuple[str, ...], Listing, Listing | None]:
    files = list_images(root, deep=True)
    if not files:
        raise UserError(f"There is no image in {root} or below it (JPEG, PNG, WebP, BMP, TIFF, GIF or HEIC).")
    return (), Listing(files, [-1] * len(files)), None


def _list(root: Path) -> tuple[tuple[str, ...], Listing, Listing | None]:
    folders = subfolders(root)
    train_root = root / "train" if "train" in folders else root
    test_name = next((name for name in TEST_FOLDERS if name in folders), None) if train_root != root else None
    classes = tuple(_classes(train_root))
    train = _listing(train_root, classes)
    if not train.files:
        raise UserError(
            f"There is no image in {train_root}. It should hold one folder of images for each class, "
            "or images without folders (JPEG, PNG, WebP, BMP, TIFF, GIF or HEIC)."
        )
    if test_name is None:
        return (classes, *_set_aside(train, classes))
    unknown = [name for name in _classes(root / test_name) if name not in classes]
    if unknown and classes:
        raise UserError(f"The class {unknown[0]!r} is in {root / test_name}, but not in {train_root}.")
    return classes, train, _listing(root / test_name, classes, loose=not classes)


def _classes(folder: Path) -> list[str]:
    return subfolders(folder)


def _listing(folder: Path, classes: tuple[str, ...], loose: bool = True) -> Listing:
    files: list[File] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        found = list_images(folder / name, deep=True)
        files += found
        labels += [number] * len(found)
    if loose:
        found = list_images(folder)
        files += found
        labels += [-1] * len(found)
    return Listing(files, labels)


def _set_aside(listing: Listing, classes: tuple[str, ...]) -> tuple[Listing, Listing | None]:
    """A fifth of each class (of all images where there are no classes) as test, the same at every load."""
    from osp.randomness import permutation

    labels = np.array(listing.labels)
    is_test = np.zeros(len(labels), dtype=bool)
    for number, name in enumerate(classes or ("",), start=0 if classes else -1):
        members = np.flatnonzero(labels == number)
        is_test[members[permutation(len(members), "folder", "test", name)[: len(members) // 5]]] = True
    train, test = (
        Listing([listing.files[i] for i in chosen], [listing.labels[i] for i in chosen])
        for chosen in (np.flatnonzero(~is_test), np.flatnonzero(is_test))
    )
    return train, test if test.files else None


def look(name: str, root: Path) -> SourceInfo:
    """Any folder will do, so none is looked for."""
    how = "your own images, one folder for each class: --data folder --data-dir FOLDER"
    if name == "pile":
        how = "your own unsorted images, beside --data folder: --ood-data pile --ood-dir FOLDER"
    return SourceInfo(name, True, "any folder of images", None, None, (3, SIZE, SIZE), how=how)
