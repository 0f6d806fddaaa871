"""Image sets by name: `load` gives the training and the test images, `describe` says what is there and what is not.

Nothing heavy is imported before a set is asked for, so that the command answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osp.data.images import ImageSet
from osp.data.source import (
    Description,
    Progress,
    Remote,
    Request,
    Source,
    SourceInfo,
    SplitDefaults,
    available,
    get,
    known,
)
from osp.errors import UserError, user_path
from osp.plugins import plain_name, trust

__all__ = [
    "Description",
    "ImageSet",
    "Progress",
    "Remote",
    "Request",
    "Source",
    "SourceInfo",
    "SplitDefaults",
    "available",
    "data_dir",
    "describe",
    "describe_set",
    "get",
    "known",
    "load",
]

SMALLEST, LARGEST = 8, 1024


def data_dir(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which sets are looked for: `root`, else OSP_DATA, else the user's cache folder."""
    chosen = os.fspath(root) if root is not None else os.environ.get("OSP_DATA", "")
    if chosen:
        return user_path(chosen).absolute()
    if root is not None:
        raise UserError("The data folder's name is empty. Name a folder, or leave it out.")
    import platformdirs

    return Path(platformdirs.user_cache_dir("osp"))


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    named: bool = True,
    fetch: bool = True,
) -> tuple[ImageSet, ImageSet | None]:
    """The training and the test set of a name or a file (./farm.py); the test set is None where there is none (`lsun`).

    `size` resizes the images, antialiased, to size x size (photographs: shorter side, then the middle). Left out,
    images keep their own size, except in `tinyimagenet`, `stl10`, `lsun`, `folder`, `pile` and `shards`, which then are
    32x32. `seed` is what `gaussian` and `uniform` are made from, and a set of your own may use it (`Request.seed`); the
    others are the same for every seed. `progress(done, total, text)` is called now and then during anything that takes
    long. A missing set is fetched from its publisher, or refused with `fetch=False`. `named=False` is for names from a
    stored plan: a file is then run only if the user has named it elsewhere.

    >>> train, test = load("digits")
    >>> train.shape, train.labels[:3].dtype, len(train) > len(test)
    ((1, 8, 8), dtype('int64'), True)
    """
    if named:
        trust(name)
    found, request = _asked(name, root, size, seed, progress, fetch)
    with _readable(request.root):
        return found.load(request)


def describe_set(
    name: str, root: str | os.PathLike[str] | None = None, *, size: int | None = None, progress: Progress | None = None
) -> Description:
    """Classes, images per class and shape of one set, from listings, headers and labels: nothing is decoded.

    Counts are of files: one that turns out to be unreadable is left out only by `load`. A missing set is fetched.

    >>> describe_set("digits").smallest_class, describe_set("digits").shape
    (116, (1, 8, 8))
    """
    found, request = _asked(name, root, size, 0, progress)
    with _readable(request.root):
        if found.describe:
            return found.describe(request)
        train, test = found.load(request)
        test_classes = None if test is None else test.classes
        return Description.of(request.name, train.class_names, train.classes, test_classes, shape=train.shape)


def describe(root: str | os.PathLike[str] | None = None) -> list[SourceInfo]:
    """What can be said of each set in a moment: found or not, where, size, variant, how to get it."""
    folder = data_dir(root)
    return [_look(Request(name, folder)) for name in available()]


def _look(request: Request) -> SourceInfo:
    try:
        with _readable(request.root):
            if look := get(request.name).look:
                return look(request)
        return SourceInfo(request.name, None, "known by name; its file does not say what is there (`look`)")
    except UserError as error:
        return SourceInfo(request.name, found=False, where=str(request.root), problem=str(error))


def _asked(
    name: str,
    root: str | os.PathLike[str] | None,
    size: int | None,
    seed: int,
    progress: Progress | None,
    fetch: bool = True,
) -> tuple[Source, Request]:
    found = get(name)
    if size is not None and not (isinstance(size, int) and SMALLEST <= size <= LARGEST):
        raise UserError(f"size is {size!r}, but images are whole numbers of pixels from {SMALLEST} to {LARGEST}.")
    if found.own_folder and root is None and not os.environ.get("OSP_DATA"):
        field = "ood_dir" if found.unsorted else "data_dir"
        raise UserError(f"The data set {name!r} is your own folder of images: name it ({field}, or OSP_DATA).")
    return found, Request(plain_name(name), data_dir(root), size, seed, progress, fetch)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"{error.filename or folder} cannot be read: {why}.") from None
