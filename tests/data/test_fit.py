"""Images given to a model are made what training reads: bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp.data
from osp.data.decode import decode, fit_image
from osp.data.fit import fit_images
from osp.data.images import match
from osp.errors import UserError

SIZES = ((40, 40), (61, 33), (33, 61), (32, 32), (20, 90), (9, 8))


def photos(channels: int = 3) -> list[np.ndarray]:
    draws = np.random.default_rng(0)
    shape = () if channels == 1 else (channels,)
    return [draws.integers(0, 256, (*size, *shape), dtype=np.uint8) for size in SIZES]


@pytest.mark.parametrize("size", [32, 28, 17])
def test_arrays_of_mixed_sizes_equal_what_training_reads_from_the_same_pixels(tmp_path: Path, size: int) -> None:
    given = photos()
    for index, pixels in enumerate(given):
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    train, test = osp.data.load("folder", tmp_path, size=size)
    assert test is not None
    assert train.files is not None
    assert test.files is not None
    read = dict(zip([*train.files, *test.files], [*train.images, *test.images], strict=True))
    paths = [tmp_path / f"{index}.png" for index in range(len(given))]
    expected = np.stack([read[str(path)] for path in paths])
    opened = [Image.open(path) for path in paths]
    for images in (given, paths, list(map(str, paths)), opened, [given[0], paths[1], opened[2], *given[3:]]):
        np.testing.assert_array_equal(fit_images(images, (3, size, size)), expected)
    np.testing.assert_array_equal(fit_images(str(paths[1]), (3, size, size)), expected[1:2])
    np.testing.assert_array_equal(fit_images(opened[1], (3, size, size)), expected[1:2])
    np.testing.assert_array_equal(fit_images(given[1], (3, size, size)), expected[1:2])
    np.testing.assert_array_equal(fit_image(given[4], size), expected[4])


def test_a_photograph_keeps_its_proportions_where_squashing_would_not() -> None:
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, 40:80] = 255  # the middle square is white, the sides are black
    assert (fit_images(wide, (3, 16, 16))[..., 1:-1] == 255).all()  # the filter reaches a little over the edge


def test_a_jpeg_file_with_an_orientation_is_read_as_training_reads_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photos()[1]).save(tmp_path / "a.jpg", exif=exif)
    expected = decode(str(tmp_path / "a.jpg"), 24)
    np.testing.assert_array_equal(fit_images(tmp_path / "a.jpg", (3, 24, 24))[0], expected)
    with Image.open(tmp_path / "a.jpg") as image:  # small enough that the file is decoded in full, too
        np.testing.assert_array_equal(fit_images([image], (3, 24, 24))[0], expected)


def test_an_array_of_equal_images_is_treated_as_the_list_of_them() -> None:
    draws = np.random.default_rng(1)
    for shape in ((5, 20, 30, 3), (5, 20, 30, 1), (5, 20, 30), (5, 16, 16, 3), (5, 16, 16)):
        array = draws.integers(0, 256, shape, dtype=np.uint8)
        for channels in (1, 3):
            fitted = fit_images(array, (channels, 16, 16))
            assert fitted.shape == (5, channels, 16, 16)
            np.testing.assert_array_equal(fitted, fit_images(list(array), (channels, 16, 16)))


def test_channels_agree_with_those_of_the_training_images() -> None:
    grey, color = np.stack([photos(1)[0]] * 2), np.stack([photos()[0]] * 2)
    small = fit_images(grey, (1, 16, 16))
    resized = Image.fromarray(grey[0]).resize((16, 16), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(small[0, 0], np.asarray(resized))
    np.testing.assert_array_equal(fit_images(grey, (3, 16, 16)), np.repeat(small, 3, axis=1))
    np.testing.assert_array_equal(fit_images(color, (1, 16, 16)), match(fit_images(color, (3, 16, 16)), (1, 16, 16)))
    np.testing.assert_array_equal(fit_images(grey, (1, 40, 40)), grey[:, None])


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    shape = (3, 16, 16)
    with pytest.raises(UserError, match=r"must be uint8 .* these are float64"):
        fit_images(np.zeros((2, 8, 8, 3)), shape)
    with pytest.raises(UserError, match=r"1 or 3 channels; these are \(2, 8, 8, 4\)"):
        fit_images(np.zeros((2, 8, 8, 4), np.uint8), shape)
    with pytest.raises(UserError, match=r"N×C×H×W .* these are \(8, 8\)"):
        fit_images(np.zeros((8, 8), np.uint8), shape)
    with pytest.raises(UserError, match="no images to look at"):
        fit_images(np.zeros((0, 8, 8), np.uint8), shape)
    with pytest.raises(UserError, match="no images to look at"):
        fit_images([], shape)
    with pytest.raises(UserError, match="Image 1 must be uint8"):
        fit_images([np.zeros((8, 8), np.uint8), np.zeros((8, 8))], shape)
    (tmp_path / "a.jpg").write_text("milk")
    with pytest.raises(UserError, match=r"a\.jpg cannot be read as an image: not an image"):
        fit_images(tmp_path / "a.jpg", shape)
    with pytest.raises(UserError, match="8×6 pixels"):
        fit_images(np.zeros((2, 9, 9), np.uint8), (1, 8, 6))
    assert fit_images(np.zeros((2, 8, 6), np.uint8), (1, 8, 6)).shape == (2, 1, 8, 6)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_as_the_data_sets_have_them_are_taken_as_they_are(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, channels, 8, 8), dtype=np.uint8)
    np.testing.assert_array_equal(fit_images(images, (channels, 8, 8)), images)
