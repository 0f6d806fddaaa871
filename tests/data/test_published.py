"""What is said of a published set before it is loaded: where it is, how many images, what is wrong with it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import osp.data
from helpers.published_files import cifar10_python, save_images, stl10, tiny_imagenet


def info_of(name: str, root: Path) -> osp.data.SourceInfo:
    return next(info for info in osp.data.describe(root) if info.name == name)


def make(name: str, root: Path) -> None:
    if name == "lsun":
        save_images(root / "LSUN_resize", 7)
    elif name == "cifar10":
        cifar10_python(root)
    elif name == "stl10":
        stl10(root)
    else:
        tiny_imagenet(root)


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


def test_a_changed_file_is_told_by_its_checksum_and_remembered(tmp_path: Path) -> None:
    cifar10_python(tmp_path)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    wrong = hashlib.md5(batch.read_bytes()).hexdigest()
    assert wrong != "c99cafc152244af753f735de768cd75f"
    assert "data_batch_1" in str(info_of("cifar10", tmp_path).variant)
    (batch.parent / "VARIANT.txt").write_text("twenty images\n a batch\n")
    assert info_of("cifar10", tmp_path).variant == "twenty images a batch"
