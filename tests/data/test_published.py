"""What is said of a published set before it is loaded: where it is, how many images, what is wrong with it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import osp.data
from helpers.published_files import cifar10_python, save_images, stl10, tiny_imagenet
from osp.data.sources.cifar10 import CIFAR10


def info_of(name: str, root: Path) -> osp.data.SourceInfo:
    look = osp.data.get(name).look
    assert look is not None
    return look(osp.data.Request(name, root))


def make(name: str, root: Path) -> None:
    if name == "lsun":
        save_images(root / "LSUN_resize", 7)
    elif name == "cifar10":
        cifar10_python(root)
    elif name == "stl10":
        stl10(root)
    else:
        tiny_imagenet(root)


def counted(images: osp.data.ImageSet | None, classes: int) -> tuple[tuple[int, ...], int]:
    """Images of each class, and images without one."""
    if images is None or images.labels is None:
        return (), 0 if images is None else len(images)
    counts = np.bincount(images.labels[images.labels >= 0], minlength=classes)
    return tuple(counts.tolist()), int((images.labels < 0).sum())


DIGITS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
TEST_DIGITS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
NEW_ORDER = "original pixels and split; order within a split is new"


@pytest.mark.parametrize(
    ("name", "shape", "train_counts", "test_counts", "variant", "some_names"),
    [
        ("mnist", (1, 28, 28), DIGITS, TEST_DIGITS, None, {5: "5"}),
        ("cifar100", (3, 32, 32), (500,) * 100, (100,) * 100, NEW_ORDER, {0: "apple", 99: "worm"}),
        ("lsun", (3, 32, 32), (), None, "stand-in: outdoor scenes, not LSUN", {}),
        pytest.param(
            *(
                "cifar10",
                (3, 32, 32),
                (5000,) * 10,
                (1000,) * 10,
                "pixels went through JPEG once",
                {2: "bird", 7: "horse"},
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("tinyimagenet", (3, 32, 32), (500,) * 200, (50,) * 200, "already resized to 32x32, JPEG"),
            {0: "Egyptian cat", 1: "reel", 2: "volleyball"},  # the order of wnids.txt
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_real_set_has_the_published_counts_when_it_is_loaded_described_and_listed(
    real_data: Callable[..., Path],
    name: str,
    shape: tuple[int, int, int],
    train_counts: tuple[int, ...],
    test_counts: tuple[int, ...] | None,
    variant: str | None,
    some_names: dict[int, str],
) -> None:
    root = real_data("scenes" if name == "lsun" else name)
    train, test = osp.data.load(name, root)
    classes, without = len(train_counts), 10_000 if name == "lsun" else 0
    assert counted(train, classes) == (train_counts, without)
    assert (test is None) == (test_counts is None)
    assert counted(test, classes) == (test_counts or (), 0)
    assert (train.shape, train.variant, len(set(train.class_names))) == (shape, variant, classes)
    assert {number: train.class_names[number] for number in some_names} == some_names
    assert train.mirror == train.cutout == (name != "mnist")
    levels = np.stack([np.bincount(train.images[:, channel].reshape(-1), minlength=256) for channel in range(shape[0])])
    mean = levels @ np.arange(256) / levels.sum(1)
    std = np.sqrt(levels @ np.arange(256) ** 2 / levels.sum(1) - mean**2)
    np.testing.assert_allclose(mean / 255, train.mean, atol=0.002)
    if name != "tinyimagenet":  # published for 64x64, these are 32x32
        np.testing.assert_allclose(std / 255, train.std, atol=0.002)

    described = osp.data.describe_set(name, root)
    assert (described.class_names, described.shape) == (train.class_names, shape)
    assert (described.train, described.train_unknown) == (train_counts, without)
    assert (described.test, described.test_unknown) == (test_counts, 0)
    info = info_of(name, root)
    assert (info.found, info.train, info.test) == (True, len(train), None if test is None else len(test))
    assert (info.shape, info.variant) == (shape, variant)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["cifar10", "stl10", "tinyimagenet", "lsun"])
def test_counts_are_those_of_the_files_that_are_there(tmp_path: Path, name: str) -> None:
    make(name, tmp_path)
    info, found = info_of(name, tmp_path), osp.data.describe_set(name, tmp_path)
    train, test = osp.data.load(name, tmp_path)
    assert (info.found, info.problem, info.shape) == (True, None, train.shape)
    assert (info.train, info.test) == (len(train), None if test is None else len(test))
    assert sum(found.train) + found.train_unknown == len(train)
    assert info.variant == train.variant
    assert train.variant is not None


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_5", "data_batch_5 is missing"),
        ("stl10", "stl10_binary/unlabeled_X.bin", "unlabeled_X.bin is missing"),
        ("tinyimagenet", "tiny-imagenet-200/val", "val is missing"),
    ],
)
def test_what_is_missing_is_named_as_the_problem_and_how_to_get_it(
    tmp_path: Path, name: str, file: str, words: str
) -> None:
    make(name, tmp_path)
    (shutil.rmtree if (tmp_path / file).is_dir() else Path.unlink)(tmp_path / file)
    info = info_of(name, tmp_path)
    assert not info.found
    assert words in str(info.problem)
    assert Path(info.where) == (tmp_path / file).parent
    assert osp.data.get(name).remotes[0].file in info.how


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10", "tinyimagenet"])
def test_an_archive_beside_nothing_else_is_unpacked_at_the_first_use(tmp_path: Path, name: str) -> None:
    archive = tmp_path / osp.data.get(name).remotes[0].file
    archive.write_bytes(b"no archive")
    info = info_of(name, tmp_path)
    assert (info.found, info.where, info.how) == (True, str(archive), "unpacked at the first use")
    counts = {"stl10": (105_000, 8_000), "tinyimagenet": (100_000, 10_000)}
    assert (info.train, info.test) == counts.get(name, (50_000, 10_000))


def test_the_mark_of_a_wrong_archive_is_there_from_the_first_moment_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar10_python(tmp_path / "source")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    renamed = os.rename

    def killed(source: Path, target: Path) -> None:
        renamed(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        osp.data.load("cifar10", tmp_path)
    monkeypatch.undo()
    (tmp_path / "cifar-10-python.tar.gz").unlink()
    assert osp.data.load("cifar10", tmp_path)[0].variant == "not as published (checksum): cifar-10-python.tar.gz"


def test_a_changed_file_is_told_by_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CIFAR10, "counts", (100, 0, 20))  # else the counts would tell
    cifar10_python(tmp_path)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    wrong = hashlib.md5(batch.read_bytes()).hexdigest()
    assert wrong != "c99cafc152244af753f735de768cd75f"
    assert "data_batch_1" in str(info_of("cifar10", tmp_path).variant)
    (batch.parent / "VARIANT.txt").write_text("twenty images\n a batch\n")
    assert info_of("cifar10", tmp_path).variant == "twenty images a batch"
