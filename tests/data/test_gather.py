"""Gathering agrees with indexing one plain array."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from osp.data.gather import Images, match

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
