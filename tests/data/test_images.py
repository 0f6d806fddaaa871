"""Image sets and images by index: the content key, arrays as one, channels matched."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import osp.data
from osp.data import ImageSet
from osp.data.images import Images, PixelKey, match


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


RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
    draws=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_take_is_indexing_of_the_concatenation(sizes: list[int], draws: list[int]) -> None:
    parts = [pixels(size, 3, 4, 5) for size in sizes]
    images, whole = Images(parts), np.concatenate(parts)
    index = [draw % len(whole) for draw in draws]
    expected = whole[np.array(index, dtype=np.int64)]
    assert len(images) == len(whole)
    assert images.shape == (3, 4, 5)
    for given_index in (index, np.array(index, dtype=np.int64), torch.tensor(index, dtype=torch.int64)):
        taken = images.take(given_index)
        assert taken.dtype == torch.uint8
        assert np.array_equal(taken.numpy(), expected)


def test_read_only_memory_maps_give_ordinary_tensors_without_a_warning(tmp_path: Path) -> None:
    plain = pixels(20, 3, 8, 8)
    np.save(tmp_path / "images.npy", plain)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    index = np.array([19, 0, 7, 7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone, joined = Images(mapped).take(index), Images([mapped, mapped]).take(index + 20)
        alone.add_(1)  # a copy: writable, and nothing reaches the file
    assert np.array_equal(joined.numpy(), plain[index])
    assert np.array_equal(np.load(tmp_path / "images.npy"), plain)


def test_what_is_taken_is_a_copy() -> None:
    plain = pixels(4, 1, 2, 2)
    before = plain.copy()
    Images(plain).take(np.arange(4)).zero_()
    assert np.array_equal(plain, before)


@pytest.mark.parametrize("index", [[4], [-1], [True, False], [0.5], [[0]]])
def test_an_index_outside_or_of_another_kind_is_an_error(index: list[int]) -> None:
    with pytest.raises(IndexError):
        Images(pixels(4, 1, 2, 2)).take(index)


def test_parts_of_another_shape_or_type_are_an_error() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        Images([pixels(4, 1, 2, 2), pixels(4, 3, 2, 2)])
    with pytest.raises(ValueError, match="float64"):
        Images(np.zeros((4, 1, 2, 2)))
    with pytest.raises(ValueError, match="at least one"):
        Images([])


def test_grey_becomes_rgb_by_repetition_without_a_copy() -> None:
    grey = pixels(6, 1, 5, 5)
    matched = match(grey, (3, 5, 5))
    assert np.shares_memory(matched, grey)
    taken = Images([pixels(2, 3, 5, 5), matched]).take([7, 2])
    assert np.array_equal(taken.numpy(), np.repeat(grey[[5, 0]], 3, axis=1))
    assert taken.is_contiguous()


def test_rgb_becomes_grey_as_in_pillow() -> None:
    rgb = pixels(1100, 3, 9, 9)  # more than one piece
    grey = match(rgb, (1, 9, 9))
    for image, converted in zip(rgb, grey, strict=True):
        expected = np.asarray(Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).convert("L"))
        assert np.array_equal(converted[0], expected)


def test_matching_images_pass_and_other_sizes_do_not() -> None:
    images = pixels(2, 3, 4, 4)
    assert match(images, (3, 4, 4)) is images
    with pytest.raises(ValueError, match="4×4, not 8×8"):
        match(images, (3, 8, 8))
    with pytest.raises(ValueError, match="3 channels, not 2"):
        match(images, (2, 4, 4))
