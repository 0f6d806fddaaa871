"""The content key: the same for the same images, another for any other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp.data
from osp.data import ImageSet
from osp.data.imageset import PixelKey


def a_set(images: np.ndarray, labels: np.ndarray | None = None) -> ImageSet:
    return ImageSet("toy", images, labels, ("a", "b"), (0.5,), (0.5,))


IMAGES = np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), dtype=np.uint8)
LABELS = np.arange(50) % 2


def test_the_key_follows_pixels_order_shape_and_labels() -> None:
    other = IMAGES.copy()
    other[49, 2, 7, 7] ^= 1
    swapped = IMAGES[[1, 0, *range(2, 50)]]
    sets = [
        a_set(IMAGES),
        a_set(IMAGES, LABELS),
        a_set(IMAGES, 1 - LABELS),
        a_set(other, LABELS),
        a_set(swapped, LABELS),
        a_set(IMAGES[:49], LABELS[:49]),
        a_set(IMAGES.reshape(50, 3, 4, 16), LABELS),
        a_set(IMAGES.reshape(150, 1, 8, 8)),
    ]
    keys = [each.content_key for each in sets]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 and int(key, 16) >= 0 for key in keys)


def test_the_key_does_not_ask_where_or_how_the_images_are_kept(tmp_path: Path) -> None:
    expected = a_set(IMAGES, LABELS).content_key
    np.save(tmp_path / "images.npy", IMAGES)
    assert a_set(np.load(tmp_path / "images.npy", mmap_mode="r"), LABELS).content_key == expected
    assert a_set(np.asfortranarray(IMAGES), LABELS.astype(np.int32)).content_key == expected
    assert dataclasses.replace(a_set(IMAGES, LABELS), name="other", mirror=False).content_key == expected


@pytest.mark.parametrize("pieces", [[50], [1, 49], [7, 0, 20, 23]])
def test_a_key_fed_in_pieces_is_that_of_the_whole(pieces: list[int]) -> None:
    whole, key = PixelKey(), PixelKey()
    whole.update(IMAGES)
    for piece in np.split(IMAGES, np.cumsum(pieces)[:-1]):
        key.update(piece)
    assert key.hexdigest() == whole.hexdigest()


def test_folders_note_the_key_of_their_pixels_while_they_are_decoded(tmp_path: Path) -> None:
    for part, count in (("train", 40), ("test", 5)):  # the 32 files of a chunk end within the training images
        (tmp_path / part / "cat").mkdir(parents=True)
        for number in range(count):
            pixels = IMAGES[number if part == "train" else 40 + number].transpose(1, 2, 0)
            Image.fromarray(pixels[:, : 4 + number % 5]).save(tmp_path / part / "cat" / f"{number:02}.png")
    for broken in ("train/cat/03.png", "train/cat/39.png", "test/cat/00.png"):
        (tmp_path / broken).write_bytes(b"no image: " + broken.encode())
    for _ in range(2):  # decoded, then mapped
        with pytest.warns(UserWarning, match="3 of 45 images"):
            train, test = osp.data.load("folder", tmp_path, size=8)
        assert test is not None
        assert (len(train), len(test)) == (38, 4)
        for images in (train, test):
            assert images.pixels is not None
            assert images.content_key == dataclasses.replace(images, pixels=None).content_key
    assert test is not None
    assert train.content_key != test.content_key


def test_sets_made_from_a_seed_have_one_key_each() -> None:
    keys = [part.content_key for seed in (0, 1) for part in osp.data.load("uniform", seed=seed, size=8) if part]
    assert len(set(keys)) == 4
    assert osp.data.load("uniform", seed=1, size=8)[0].content_key == keys[2]
