"""Images as people have them, made into a model's input by the function that also made the training images."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from osp.data.images import match
from osp.errors import UserError

WANTED = "Images must be N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels"


def fit_images(images: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """uint8 N×C×H×W of the shape a model wants, from an array, a path, a Pillow image, or a list of any of these.

    An array is uint8: N×H×W (grey), N×H×W×C, one H×W×3, or N×C×H×W as `osp.data.load` gives it. In a list each array
    is one image, H×W, H×W×1 or H×W×3, and sizes may differ. Images of another size are cut to their middle square and
    resized as in training; colors become grey, or grey three channels, where the model wants that.
    """
    if isinstance(images, np.ndarray):
        return _fit_array(images, shape)
    if isinstance(images, str | os.PathLike) or not isinstance(images, Iterable):
        images = [images]
    each = list(images)
    if not each:
        raise UserError("There are no images to look at: the list is empty.")
    return np.stack([_fit_one(image, shape, position) for position, image in enumerate(each)])


def _fit_array(array: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    if array.dtype != np.uint8:
        raise UserError(f"Images must be uint8 (0 to 255); these are {array.dtype}.")
    given = array.shape
    if array.ndim == 3:  # one photograph, or grey images
        array = array[None] if array.shape[2] == 3 else array[..., None]
    if array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] not in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise UserError(f"{WANTED}; these are {given}.")
    if not array.size:
        raise UserError(f"There are no images to look at: these are {given}.")
    if array.shape[1:3] == shape[1:] and array.shape[3] == shape[0]:
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    return np.stack([_fit_pixels(image, shape) for image in array])


def _fit_one(image: Any, shape: tuple[int, int, int], position: int) -> np.ndarray:
    from PIL import Image

    from osp.data.decode import Unreadable, decode

    if isinstance(image, str | os.PathLike):
        try:
            return _channels(decode(os.fspath(image), _side(shape)), shape[0])
        except Unreadable as reason:
            raise UserError(f"{os.fspath(image)} cannot be read as an image: {reason}.") from None
    if isinstance(image, Image.Image):
        return _fit_pixels(image, shape)
    array = np.asarray(image)
    if array.dtype != np.uint8:
        raise UserError(f"Image {position} must be uint8 (0 to 255), a path or a Pillow image; it is {array.dtype}.")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)) or not array.size:
        raise UserError(f"Image {position} must be H×W, H×W×1 or H×W×3; it is {array.shape}.")
    return _fit_pixels(array, shape)


def _fit_pixels(image: Any, shape: tuple[int, int, int]) -> np.ndarray:
    from osp.data.decode import fit_image

    if isinstance(image, np.ndarray):
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[..., 0]
        if image.shape[:2] == shape[1:]:  # nothing to resize, square or not
            pixels = image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
            return _channels(np.ascontiguousarray(pixels), shape[0])
    return _channels(fit_image(image, _side(shape)), shape[0])


def _side(shape: tuple[int, int, int]) -> int:
    _, height, width = shape
    if height != width:
        raise UserError(f"This model looks at images of {height}×{width} pixels; bring yours to that size first.")
    return height


def _channels(pixels: np.ndarray, wanted: int) -> np.ndarray:
    """Grey repeated, or luminance as Pillow has it; grey that was made RGB comes back exactly."""
    return np.ascontiguousarray(match(pixels[None], (wanted, *pixels.shape[1:]))[0])
