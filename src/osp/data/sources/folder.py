"""The user's own images: one folder per class, `train` and `test` folders of these, or a flat pile without classes.

Loose images beside class folders belong to the training set with the label -1 (class unknown). Each image is there
once: of copies (the same bytes) one is kept, and what was left out is said (`osp.data.copies`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from osp.data.imageset import ImageSet
from osp.data.listing import kinds_in_words, subfolders, walk
from osp.data.source import Description, Request, Source, SourceInfo
from osp.data.sources._photos import SIZE, Photos, describe_photos, load_photos
from osp.data.sources.base import check_root
from osp.errors import UserError

TEST_FOLDERS = ("test", "val", "valid", "validation")


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Decode and resize once, to 32x32 if no size is given."""
    return load_photos(request, _list(request.root))


def describe(request: Request) -> Description:
    """Count the files."""
    return describe_photos(request, _list(request.root))


def look(request: Request) -> SourceInfo:
    """Any folder will do, so none is looked for."""
    how = "your own images, one folder per class: data 'folder', data_dir its path"
    return SourceInfo(request.name, True, "any folder of images", None, None, (3, SIZE, SIZE), how=how)


def _list(root: Path) -> Photos:
    """The files, copies left out. Without a test folder a fixed fifth of each class is the test set."""
    check_root(root, must_exist=True)
    folders, links = subfolders(root)
    train_root = root / "train" if "train" in folders else root
    test_name = next((name for name in TEST_FOLDERS if name in folders), None) if train_root != root else None
    if train_root != root:
        folders, more = subfolders(train_root)
        links += more
    classes = tuple(folders)
    photos = Photos(root, classes)
    photos.found.links += links
    _add(photos, train_root)
    if not photos.files:
        raise UserError(
            f"There is no image in {train_root}. It should hold one folder of images for each class, "
            f"or images without folders ({kinds_in_words()})."
        )
    if test_name is None:
        photos.leave_out_copies()
        _set_aside(photos)
        return photos
    unknown = [name for name in subfolders(root / test_name)[0] if name not in classes]
    if unknown and classes:
        raise UserError(f"The class {unknown[0]!r} is in {root / test_name}, but not in {train_root}.")
    _add(photos, root / test_name, test=True, loose=not classes)
    photos.leave_out_copies()
    return photos


def _add(photos: Photos, folder: Path, test: bool = False, loose: bool = True) -> None:
    for number, name in enumerate(photos.classes):
        if (folder / name).is_dir():
            photos.add(walk(folder / name), number, test)
    if loose:
        photos.add(walk(folder, deep=False), -1, test)


def _set_aside(photos: Photos) -> None:
    """A fifth of each class (of all images where there are no classes) as test, the same at every load."""
    from osp.randomness import permutation

    labels = np.array(photos.labels)
    for number, name in enumerate(photos.classes or ("",), start=0 if photos.classes else -1):
        members = np.flatnonzero(labels == number)
        for index in members[permutation(len(members), "folder", "test", name)[: len(members) // 5]]:
            photos.is_test[index] = True


SOURCE = Source(load=load, describe=describe, look=look, own_folder=True)
