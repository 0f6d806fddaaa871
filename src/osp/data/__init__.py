"""Image sets by name: `load` gives the training and the test images, `describe` says what is there and what is not.

Nothing heavy is imported before a set is asked for, so that the command answers at once.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import cast

from osp.data.imageset import ImageSet
from osp.data.sources.base import Progress, Request, Source, SourceInfo
from osp.errors import UserError, suggest

__all__ = ["ImageSet", "Progress", "SourceInfo", "available", "data_dir", "describe", "load"]

SMALLEST, LARGEST = 8, 1024

_MODULES = {
    "digits": "digits",
    "mnist": "mnist",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "tinyimagenet": "tinyimagenet",
    "stl10": "stl10",
    "lsun": "lsun",
    "gaussian": "noise",
    "uniform": "noise",
    "folder": "folder",
    "pile": "folder",
}


def available() -> list[str]:
    """Names that `load` knows.

    >>> available()[:3]
    ['digits', 'mnist', 'cifar10']
    """
    return list(_MODULES)


def data_dir(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which sets are looked for: `root`, else OSP_DATA, else the user's cache folder."""
    chosen = os.fspath(root) if root is not None else os.environ.get("OSP_DATA", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if root is not None:
        raise UserError("The data folder's name is empty. Name a folder, or leave the option out.")
    import platformdirs

    return Path(platformdirs.user_cache_dir("osp"))


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[ImageSet, ImageSet | None]:
    """The training and the test set of a known name; the test set is None where there is none (`lsun`).

    `size` resizes the images, antialiased, to size x size (photographs: shorter side, then the middle). Left out,
    images keep their own size, except in `tinyimagenet`, `stl10`, `lsun`, `folder` and `pile`, which then are 32x32.
    `seed` only matters for `gaussian` and `uniform`, which are made from it. `progress(done, total, text)` is called
    now and then during anything that takes long. A missing set is fetched from its publisher.

    >>> train, test = load("digits")
    >>> train.shape, train.labels[:3].dtype, len(train) > len(test)
    ((1, 8, 8), dtype('int64'), True)
    """
    source = _source(name)
    if size is not None and not (isinstance(size, int) and SMALLEST <= size <= LARGEST):
        raise UserError(f"size is {size!r}, but images are whole numbers of pixels from {SMALLEST} to {LARGEST}.")
    if name in ("folder", "pile") and root is None and not os.environ.get("OSP_DATA"):
        option = "--data-dir" if name == "folder" else "--ood-dir"
        raise UserError(f"The data set {name!r} is your own folder of images: name it with {option} (or OSP_DATA).")
    folder = data_dir(root)
    try:
        return source.load(name, Request(root=folder, size=size, seed=seed, progress=progress))
    except OSError as error:
        raise _unreadable(folder, error) from None


def describe(root: str | os.PathLike[str] | None = None) -> list[SourceInfo]:
    """What can be said of each set without reading its images: found or not, where, size, variant, how to get it."""
    folder = data_dir(root)
    infos = []
    for name in available():
        source = _source(name)
        try:
            infos.append(source.look(name, folder))
        except UserError as error:
            infos.append(SourceInfo(name=name, found=False, where=str(folder), problem=str(error)))
        except OSError as error:
            problem = str(_unreadable(folder, error))
            infos.append(SourceInfo(name=name, found=False, where=str(folder), problem=problem))
    return infos


def _unreadable(folder: Path, error: OSError) -> UserError:
    return UserError(f"{error.filename or folder} cannot be read: {(error.strerror or str(error)).lower()}.")


def _source(name: str) -> Source:
    if name not in _MODULES:
        raise UserError(f"There is no data set {name!r}.{suggest(str(name), _MODULES)}")
    return cast(Source, importlib.import_module(f"osp.data.sources.{_MODULES[name]}"))
