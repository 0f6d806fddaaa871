"""What is passed to a scikit-learn estimator as X: images in arrays or lists, paths, folders, or plain features."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.folders import list_classes, list_images
from osp.data.resize import fit_images
from osp.errors import UserError, user_path
from osp.nets.pretrained import Backbone
from osp.photos.features import compute

CHUNK = 64
"""Images brought to the backbone's size at once, so that memory stays small."""


class InputError(UserError, ValueError):
    """A mistake in what was passed: a sentence for people, and the ValueError that scikit-learn's tools expect."""


def is_path(given: Any) -> bool:
    """Whether this is one path."""
    return isinstance(given, str | os.PathLike)


def kind_of(given: Any) -> str:
    """`images` (pixels), `files` (paths or a folder) or `features` (anything else, for scikit-learn to check)."""
    from PIL import Image

    if is_path(given):
        return "files"
    if isinstance(given, np.ndarray) and given.ndim in (3, 4):
        if given.dtype != np.uint8:
            raise InputError(f"Images must be uint8 (0 to 255); these are {given.dtype}.")
        return "images"
    if getattr(given, "ndim", 1) == 1 and hasattr(given, "__getitem__") and hasattr(given, "__len__") and len(given):
        first = next(iter(given))
        if is_path(first):
            return "files"
        if isinstance(first, Image.Image) or (isinstance(first, np.ndarray) and first.ndim in (2, 3)):
            return "images"
    return "features"


def files_of(given: Any) -> list[str]:
    """The image files that are meant: a list of paths as it is, or all images in a folder and below, sorted by path."""
    if not is_path(given):
        files = [os.fspath(path) for path in given]
        if folder := next((path for path in files if os.path.isdir(path)), None):
            raise InputError(f"{folder} is a folder: pass one folder, or a list of image files.")
        return files
    path = user_path(os.fspath(given))
    if not path.is_dir():
        return [str(path)]
    found = [file.path for file in list_images(path, deep=True)]
    if not found:
        raise InputError(f"The folder {path} holds no image.")
    return found


def labeled_folder(folder: str | os.PathLike[str]) -> tuple[list[str], np.ndarray]:
    """Image files and their classes from a folder that has one folder per class."""
    path = user_path(os.fspath(folder))
    found = list_classes(path)[0]
    files = [file.path for each in found.values() for file in each.files]
    labels = [name for name, each in found.items() for _ in each.files]
    if not files:
        raise InputError(f"The folder {path} holds no folders with images: put each class into one of its own.")
    return files, np.array(labels)


def image_features(given: Any, backbone: Backbone) -> np.ndarray:
    """float32 features of images in memory, in order."""
    shape = (3, backbone.size, backbone.size)
    if isinstance(given, np.ndarray) and given.ndim == 3:
        given = given[..., None]  # always grey here: N×H×3 is not taken for one photograph
    rows = np.empty((len(given), backbone.feature_dim), np.float32)
    for start in range(0, len(given), CHUNK):
        part = given[start : start + CHUNK]
        try:
            pixels = fit_images(part if isinstance(part, np.ndarray) and part.ndim == 4 else list(part), shape)
        except UserError as error:
            raise InputError(f"Images {start} to {start + len(part) - 1}: {error}") from None
        rows[start : start + CHUNK] = backbone.features(pixels).numpy()
    return rows


def file_features(files: Sequence[str], backbone: Backbone, skip: bool = False) -> np.ndarray:
    """Features of image files, in order, computed once and kept in the cache; `skip` warns of unreadable ones."""
    found = compute(files, backbone)
    if found.unreadable:
        (first, reason), count = found.unreadable[0], len(found.unreadable)
        told = f"{count} of {len(files)} images cannot be read; the first is {Path(first)}: {reason}."
        if not skip:
            raise InputError(f"{told} Leave them out.")
        warnings.warn(f"{told} They are left out.", stacklevel=4)
    return found.rows()
