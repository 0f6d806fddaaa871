from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import osp.data
from helpers.published_files import stl10
from osp.data.decode import resize_batch
from osp.errors import UserError


def test_labeled_images_come_first_then_unlabeled_ones_upright_and_at_32(tmp_path: Path) -> None:
    images = stl10(tmp_path)
    train, test = osp.data.load("stl10", tmp_path)
    assert test is not None
    assert train.labels is not None
    assert test.labels is not None
    assert train.images.shape == (730, 3, 32, 32)
    assert test.images.shape == (20, 3, 32, 32)
    assert train.labels[:12].tolist() == [*range(10), 0, 1]
    assert set(train.labels[30:]) == {-1}
    expected = resize_batch(np.concatenate([images["train"], images["unlabeled"]]), 32)
    np.testing.assert_array_equal(train.images, expected)
    np.testing.assert_array_equal(test.images, resize_batch(images["test"], 32))
    np.testing.assert_allclose(train.mean, train.images.mean(axis=(0, 2, 3)) / 255, atol=1e-4)
    np.testing.assert_allclose(train.std, train.images.std(axis=(0, 2, 3)) / 255, atol=1e-4)
    assert train.class_names[2] == "car"
    assert train.variant is not None
    assert "30 images in train_X.bin instead of 5,000" in train.variant


def test_at_its_own_size_pixels_are_kept_and_the_second_load_is_mapped(tmp_path: Path) -> None:
    images = stl10(tmp_path, unlabeled=3)
    for _ in range(2):
        train, _ = osp.data.load("stl10", tmp_path, size=96)
        np.testing.assert_array_equal(train.images[:30], images["train"])
    assert isinstance(train.images, np.memmap)
    path = tmp_path / "stl10_binary" / "train_X.bin"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    time.sleep(0.02)  # the system's clock of files ticks every few milliseconds
    path.write_bytes(bytes(path.stat().st_size))  # another file of the same size and time
    os.utime(path, ns=times)
    assert not osp.data.load("stl10", tmp_path, size=96)[0].images[:30].any()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train_X.bin", b"x" * 27_648 * 2 + b"x", r"multiple of 27,648.*55,297 were found"),
        ("train_X.bin", b"", "0 were found"),
        ("train_y.bin", bytes(30), "label 0"),
        ("test_y.bin", bytes([11]) * 20, "label 11"),
        ("test_y.bin", bytes([1]) * 19, "should hold 20 bytes.*19 were found"),
        ("unlabeled_X.bin", None, "is missing"),
        ("test_y.bin", None, "is missing"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    stl10(tmp_path, unlabeled=3)
    path = tmp_path / "stl10_binary" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        osp.data.load("stl10", tmp_path)
    assert name in str(error.value)
