from __future__ import annotations

import contextlib
import gzip
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import osp.data
from osp.data.sources.mnist import read_idx
from osp.errors import UserError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def _write(folder: Path, suffix: str = "", count: int = 12) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        rng = np.random.default_rng(len(name))
        shape = (count, 28, 28) if "images" in name else (count,)
        content = _idx(rng.integers(0, 10, shape, dtype=np.uint8))
        (folder / (name + suffix)).write_bytes(gzip.compress(content) if suffix else content)


def test_the_real_labels_are_in_the_published_order(real_data: Callable[..., Path]) -> None:
    labels = read_idx(real_data("mnist") / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz", 1)[1]
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", ""])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_and_gzipped_files_are_found_in_each_place(tmp_path: Path, folder: str, suffix: str) -> None:
    _write(tmp_path / folder, suffix)
    train, test = osp.data.load("mnist", tmp_path)
    assert test is not None
    assert len(train) == len(test) == 12
    assert train.variant is not None
    assert "checksum" in train.variant


def test_a_size_is_honoured(tmp_path: Path) -> None:
    _write(tmp_path)
    train, _ = osp.data.load("mnist", tmp_path, size=32)
    assert train.shape == (1, 32, 32)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_named_at_every_length(tmp_path: Path, name: str, suffix: str) -> None:
    _write(tmp_path, suffix)
    path = tmp_path / (name + suffix)
    whole = path.read_bytes()
    for length in {0, 1, 3, 4, 7, 8, 12, 15, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        if not 0 <= length < len(whole):
            continue
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=name):
            osp.data.load("mnist", tmp_path)


def test_a_cut_plain_file_gives_expected_and_found_sizes(tmp_path: Path) -> None:
    _write(tmp_path)
    path = tmp_path / FILES[0]
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"should hold 9,424 bytes.*5,000 were found"):
        osp.data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (FILES[0], _idx(np.zeros((3, 28, 28), np.uint8)), "3 images.*12 labels"),
        (FILES[1], _idx(np.full(12, 10, np.uint8)), "label 10"),
        (FILES[0], b"\x89PNG and so on, long enough for a header", "not an idx file"),
        (FILES[0], struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 28), "damaged"),
        (FILES[0], _idx(np.zeros((12, 28, 28), np.uint8)) + b"more", "9,428 were found"),
        (FILES[2], _idx(np.zeros((0, 28, 28), np.uint8)), "no image"),
    ],
)
def test_wrong_content_is_a_plain_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    _write(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        osp.data.load("mnist", tmp_path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), suffix=st.sampled_from(["", ".gz"]))
def test_a_damaged_idx_file_gives_an_array_or_a_plain_error(tmp_path: Path, data: st.DataObject, suffix: str) -> None:
    whole = _idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    raw = bytearray(gzip.compress(whole) if suffix else whole)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"images{suffix}"
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(UserError):
        assert read_idx(path, 3)[1].ndim == 3


def test_a_stated_variant_is_carried(tmp_path: Path, real_data: Callable[..., Path]) -> None:
    raw = tmp_path / "MNIST" / "raw"
    shutil.copytree(real_data("mnist") / "MNIST" / "raw", raw)
    (raw / "VARIANT.txt").write_text("\n")
    assert osp.data.load("mnist", tmp_path)[0].variant is None
    (raw / "VARIANT.txt").write_text("digits upside down\n")
    assert osp.data.load("mnist", tmp_path)[0].variant == "digits upside down"
