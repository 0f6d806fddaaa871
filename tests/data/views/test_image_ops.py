"""Every operation against Pillow's own, on photographs and digits: equal to the last grey level."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from osp.data.views import image_ops

SIZES = {"rgb32": (3, 32, 32), "rgb8": (3, 8, 8), "rgb24x40": (3, 24, 40), "grey28": (1, 28, 28), "digits8": (1, 8, 8)}


def real_images(kind: str) -> Tensor:
    """Photographs shrunk to a tile each and cut out at full resolution, or scikit-learn's digits."""
    channels, height, width = SIZES[kind]
    if kind == "digits8":
        return torch.from_numpy(np.round(load_digits().images[:24] * (255 / 16)).astype(np.uint8))[:, None]
    tiles = []
    for photo in load_sample_images().images:
        whole = Image.fromarray(photo)
        for i in range(6):
            corner = (60 * i, 40 * i)
            tiles.append(whole.crop((*corner, corner[0] + 4 * width, corner[1] + 4 * height)).resize((width, height)))
            tiles.append(whole.crop((*corner, corner[0] + width, corner[1] + height)))
    flat = [np.asarray(tile.convert("L" if channels == 1 else "RGB")) for tile in tiles]
    flat[0] = np.full_like(flat[0], 93)  # one image of a single color: no range to stretch, nothing to equalise
    images = torch.from_numpy(np.stack(flat))
    return images[:, None] if channels == 1 else images.permute(0, 3, 1, 2).contiguous()


def to_pillow(image: Tensor) -> Image.Image:
    array = image.numpy()
    return Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))


def from_pillow(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def by_pillow(images: Tensor, function: Callable[[Image.Image], Image.Image]) -> Tensor:
    return torch.stack([from_pillow(function(to_pillow(image))) for image in images])


def one_table(images: Tensor, table: Tensor) -> Tensor:
    return image_ops.apply_table(images, table.expand(len(images), images.shape[1], 256))


@pytest.fixture(params=list(SIZES))
def images(request: pytest.FixtureRequest) -> Tensor:
    return real_images(request.param)


FACTORS = [level * 0.9 / 10 + 0.05 for level in range(0, 11)] + [0.0, 1.0, 1.3, 1.9]


def test_autocontrast_equals_pillow(images: Tensor) -> None:
    ours = image_ops.apply_table(images, image_ops.autocontrast_table(images))
    assert torch.equal(ours, by_pillow(images, ImageOps.autocontrast))


def test_autocontrast_equals_pillow_for_every_range() -> None:
    ramp = np.arange(256, dtype=np.uint8)
    for low in range(0, 255, 5):
        ranges = np.stack([np.clip(ramp, low, high).reshape(16, 16) for high in range(low + 1, 256)])
        batch = torch.from_numpy(ranges)[:, None]
        ours = image_ops.apply_table(batch, image_ops.autocontrast_table(batch))
        assert torch.equal(ours, by_pillow(batch, ImageOps.autocontrast))


def test_equalize_equals_pillow(images: Tensor) -> None:
    ours = image_ops.apply_table(images, image_ops.equalize_table(images))
    assert torch.equal(ours, by_pillow(images, ImageOps.equalize))


def test_equalize_equals_pillow_on_larger_images() -> None:
    photo = torch.tensor(load_sample_images().images[0]).permute(2, 0, 1)[None, :, :96, :128].contiguous()
    ours = image_ops.apply_table(photo, image_ops.equalize_table(photo))
    assert not torch.equal(ours, photo)
    assert torch.equal(ours, by_pillow(photo, ImageOps.equalize))


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_equals_pillow(images: Tensor, bits: int) -> None:
    ours = one_table(images, image_ops.posterize_table(torch.tensor([bits])))
    assert torch.equal(ours, by_pillow(images, lambda image: ImageOps.posterize(image, bits)))


@pytest.mark.parametrize("threshold", [0, 1, 26, 52, 103, 128, 231, 255, 256])
def test_solarize_equals_pillow(images: Tensor, threshold: int) -> None:
    ours = one_table(images, image_ops.solarize_table(torch.tensor([threshold])))
    assert torch.equal(ours, by_pillow(images, lambda image: ImageOps.solarize(image, threshold)))


@pytest.mark.parametrize("factor", FACTORS)
def test_enhancers_equal_pillow(images: Tensor, factor: float) -> None:
    factors = torch.full((len(images),), factor)
    ours = {
        ImageEnhance.Brightness: one_table(images, image_ops.brightness_table(factors[:1])),
        ImageEnhance.Contrast: image_ops.apply_table(images, image_ops.contrast_table(images, factors)),
        ImageEnhance.Color: image_ops.color(images, factors),
        ImageEnhance.Sharpness: image_ops.sharpness(images, factors),
    }
    for enhancer, result in ours.items():
        expected = by_pillow(images, lambda image, enhancer=enhancer: enhancer(image).enhance(factor))  # type: ignore[misc]
        assert torch.equal(result, expected), enhancer.__name__


def same_matrix(images: Tensor, matrix: list[float]) -> Tensor:
    return image_ops.affine(images, torch.tensor([image_ops.fixed_point(matrix)] * len(images)))


@pytest.mark.parametrize("degrees", [*range(-30, 31, 3), 45, 89, 135, 181.5])
def test_rotation_equals_pillow(images: Tensor, degrees: float) -> None:
    height, width = images.shape[2:]
    ours = same_matrix(images, image_ops.rotation_matrix(degrees, height, width))
    assert torch.equal(ours, by_pillow(images, lambda image: image.rotate(degrees)))


@pytest.mark.parametrize("level", range(-10, 11))
def test_shear_and_translation_equal_pillow(images: Tensor, level: int) -> None:
    height, width = images.shape[2:]
    share = level * 0.3 / 10
    matrices: list[list[float]] = [
        [1, share, 0, 0, 1, 0],
        [1, 0, 0, share, 1, 0],
        [1, 0, int(share * width), 0, 1, 0],
        [1, 0, 0, 0, 1, int(share * height)],
    ]
    for matrix in matrices:
        expected = by_pillow(
            images,
            lambda image, matrix=matrix: image.transform(image.size, Image.Transform.AFFINE, matrix),  # type: ignore[misc]
        )
        assert torch.equal(same_matrix(images, matrix), expected), matrix


def test_each_image_has_its_own_parameter(images: Tensor) -> None:
    factors = torch.linspace(0.1, 0.9, len(images))
    for function in (image_ops.sharpness, image_ops.color):
        single = [function(image[None], factor[None]) for image, factor in zip(images, factors, strict=True)]
        assert torch.equal(function(images, factors), torch.cat(single))


def test_crop_equals_numpy_reflect_padding(images: Tensor) -> None:
    pad = images.shape[2] // 8
    shifts = [(down, right, flip) for down in (-pad, 0, pad) for right in (-pad, 1, pad) for flip in (False, True)]
    for down, right, flip in shifts:
        n, _, height, width = images.shape
        ours = image_ops.crop_and_flip(images, torch.tensor([[down, right]] * n), torch.full((n,), flip))
        array = images.numpy()[..., ::-1] if flip else images.numpy()
        padded = np.pad(array, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
        expected = padded[:, :, pad + down : pad + down + height, pad + right : pad + right + width]
        assert np.array_equal(ours.numpy(), expected)


def test_cutout_greys_a_square_clipped_at_the_border() -> None:
    images = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
    ours = image_ops.cutout(images, torch.tensor([[16, 16], [0, 31], [31, 2]]), 16)
    expected = torch.zeros_like(images)
    expected[0, :, 8:24, 8:24] = 127
    expected[1, :, 0:8, 23:32] = 127
    expected[2, :, 23:32, 0:10] = 127
    assert torch.equal(ours, expected)
