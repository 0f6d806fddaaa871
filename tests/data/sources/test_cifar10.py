from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import osp.data
from helpers.published_files import cifar10_python, rgb
from osp.errors import UserError


def test_pickles_give_their_pixels_and_other_counts_are_carried(tmp_path: Path) -> None:
    images = cifar10_python(tmp_path)
    train, test = osp.data.load("cifar10", tmp_path)
    assert test is not None
    np.testing.assert_array_equal(train.images, images)
    assert train.labels is not None
    assert train.labels[:12].tolist() == [*range(10), 0, 1]
    assert train.variant == "100 training and 20 test images instead of 50,000 and 10,000"
    inside, _ = osp.data.load("cifar10", tmp_path / "cifar-10-batches-py")
    np.testing.assert_array_equal(inside.images, images)


def test_cifar100_takes_the_fine_labels_whatever_the_kind_of_keys(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = {"data": rgb(4).reshape(4, -1), "fine_labels": [99, 0, 1, 2], "coarse_labels": [0, 0, 0, 0]}
        (folder / name).write_bytes(pickle.dumps(batch))
    train, _ = osp.data.load("cifar100", tmp_path)
    assert train.labels is not None
    assert train.labels.tolist() == [99, 0, 1, 2]


@pytest.mark.parametrize(("name", "label"), [("cifar10", b"\x07"), ("cifar100", b"\x02\x07")])
def test_the_binary_version_is_read(tmp_path: Path, name: str, label: bytes) -> None:
    images = rgb(3)
    content = b"".join(label + image.tobytes() for image in images)
    folder = tmp_path / {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}[name]
    folder.mkdir()
    for file in [f"data_batch_{i}.bin" for i in range(1, 6)] if name == "cifar10" else ["train.bin"]:
        (folder / file).write_bytes(content)
    (folder / ("test_batch.bin" if name == "cifar10" else "test.bin")).write_bytes(content)
    train, test = osp.data.load(name, tmp_path)
    assert test is not None
    np.testing.assert_array_equal(test.images, images)
    np.testing.assert_array_equal(train.images[:3], images)
    assert test.labels is not None
    assert test.labels.tolist() == [7, 7, 7]
    published = {"cifar10": "15 training", "cifar100": "3 training"}
    assert test.variant == f"{published[name]} and 3 test images instead of 50,000 and 10,000"
    (folder / ("test_batch.bin" if name == "cifar10" else "test.bin")).write_bytes(content[:-5])
    with pytest.raises(UserError, match=f"test.*{len(content) - 5:,} were found"):
        osp.data.load(name, tmp_path)


def _packed(tmp_path: Path) -> tuple[Path, np.ndarray]:
    images = cifar10_python(tmp_path / "source")
    root = tmp_path / "root"
    root.mkdir()
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    return root, images


def test_the_archive_is_unpacked_once_and_its_wrong_checksum_carried(tmp_path: Path) -> None:
    root, images = _packed(tmp_path)
    for _ in range(2):
        train, _ = osp.data.load("cifar10", root)
        np.testing.assert_array_equal(train.images, images)
        assert train.variant == "not as published (checksum): cifar-10-python.tar.gz"
    assert sorted(path.name for path in root.iterdir()) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_an_archive_in_a_read_only_folder_is_unpacked_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, images = _packed(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, for whom nothing is read-only
    train, _ = osp.data.load("cifar10", root)
    np.testing.assert_array_equal(train.images, images)
    assert [path.name for path in root.iterdir()] == ["cifar-10-python.tar.gz"]


class _Attack:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_a_batch_that_would_run_a_command_is_refused(tmp_path: Path) -> None:
    cifar10_python(tmp_path)
    marker = tmp_path / "marker"
    batch = {b"data": _Attack(f"touch {marker}"), b"labels": []}
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(UserError, match="data_batch_3 was refused"):
        osp.data.load("cifar10", tmp_path)
    assert not marker.exists()


def test_a_cut_batch_is_named_with_its_sizes(tmp_path: Path) -> None:
    cifar10_python(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(path.read_bytes()[:30_000])
    with pytest.raises(UserError, match=r"data_batch_2.*30,720,000 bytes, but 30,000 were found"):
        osp.data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"data": rgb(2).reshape(2, -1), b"labels": [0, 10]}, "label 10"),
        ({b"data": rgb(2).reshape(2, -1), b"labels": [0, -1]}, "label -1"),
        ({b"data": rgb(2).reshape(2, -1), b"labels": [0]}, "2 images but 1 labels"),
        ({b"data": rgb(2).reshape(2, -1), b"labels": ["a", "b"]}, "no list of labels"),
        ({b"data": rgb(2).reshape(2, -1)}, "no list of labels"),
        ({b"data": rgb(2, 16).reshape(2, -1), b"labels": [0, 1]}, "no rows of 3,072"),
        ({b"data": rgb(0).reshape(0, 3072), b"labels": []}, "no image"),
        ([1, 2], "not a batch"),
    ],
)
def test_wrong_content_is_a_plain_error(tmp_path: Path, batch: object, message: str) -> None:
    cifar10_python(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(UserError, match=message) as error:
        osp.data.load("cifar10", tmp_path)
    assert "data_batch_4" in str(error.value)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    cifar10_python(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_5").unlink()
    with pytest.raises(UserError, match="data_batch_5 is missing"):
        osp.data.load("cifar10", tmp_path)
