"""One image is in one part only, links lead nowhere else, and what was left out is said."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp.data
from osp.data.folders import File, list_images, same_content, walk
from osp.data.split import make_split, spec_for
from osp.errors import UserError


def write(folder: Path, count: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 9, 9, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:03}.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 20."""
    write(tmp_path / "cat", 20, 0)
    write(tmp_path / "dog", 20, 1)
    return tmp_path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of any bytes")
def test_a_class_folder_whose_name_is_not_utf8_is_refused_in_a_sentence(photos: Path) -> None:
    os.mkdir(os.fsencode(photos) + b"/caf\xe9")
    with pytest.raises(UserError, match=r"caf\\udce9 is not UTF-8.* Rename the folder") as refused:
        osp.data.load("folder", photos)
    str(refused.value).encode()


def names(files: tuple[str, ...] | None) -> set[str]:
    assert files is not None
    return {str(Path(*Path(file).parts[-2:])) for file in files}


def test_same_content_is_found_among_files_of_one_size(tmp_path: Path) -> None:
    contents = [b"a" * 9000, b"b" * 9000, b"a" * 8999 + b"c", b"a" * 9000, b"", b"", b"b" * 9000, b"aa", b"a" * 9000]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    assert same_content(list_images(tmp_path)) == [[0, 3, 8], [1, 6]]
    slow = [[i for i, other in enumerate(contents) if other == content and content] for content in contents]
    assert same_content(list_images(tmp_path)) == sorted({tuple(g): g for g in slow if len(g) > 1}.values())
    files = [File.at(str(tmp_path / name)) for name in ("0.jpg", "gone.jpg", "gone.jpg")]
    assert same_content(files) == []


def test_a_copy_within_a_class_counts_once(photos: Path) -> None:
    shutil.copy(photos / "cat" / "003.png", photos / "cat" / "zzz.png")
    os.link(photos / "cat" / "003.png", photos / "cat" / "yyy.png")
    (photos / "cat" / "xxx.png").symlink_to("003.png")
    with pytest.warns(UserWarning, match=r"3 files are copies and were left out \(cat.xxx.png = cat.003.png;"):
        train, test = osp.data.load("folder", photos)
    assert test is not None
    assert len(train) + len(test) == 40
    assert not names(train.files) & {"cat/xxx.png", "cat/yyy.png", "cat/zzz.png"}
    assert [(Path(path).name, reason) for path, reason in train.left_out] == [
        (f"{name}.png", f"the same image as {Path('cat', '003.png')}") for name in ("xxx", "yyy", "zzz")
    ]
    described = osp.data.describe_set("folder", photos)
    assert (described.train, described.test) == ((16, 16), (4, 4))
    assert "3 files are copies" in described.notes[0]


def test_an_image_under_two_classes_is_left_out_since_nobody_knows_which_is_right(photos: Path) -> None:
    shutil.copy(photos / "cat" / "003.png", photos / "dog" / "also.png")
    shutil.copy(photos / "cat" / "003.png", photos / "loose.png")
    with pytest.warns(UserWarning, match=r"3 files show images that lie in the folders of several classes"):
        train, test = osp.data.load("folder", photos)
    assert test is not None
    assert len(train) + len(test) == 39
    assert not names((*train.files, *test.files)) & {"cat/003.png", "dog/also.png"}  # type: ignore[misc]
    assert train.labels is not None
    assert (train.labels >= 0).all()


def test_a_loose_copy_of_a_sorted_image_is_left_out(photos: Path) -> None:
    shutil.copy(photos / "cat" / "003.png", photos / "000.png")
    write(photos / "loose", 1, 7)
    (photos / "loose" / "000.png").rename(photos / "other.png")
    (photos / "loose").rmdir()
    with pytest.warns(UserWarning, match=r"1 file is a copy and was left out \(000.png = cat.003.png\)"):
        train, _ = osp.data.load("folder", photos)
    assert train.labels is not None
    assert (train.labels < 0).sum() == 1


def test_a_copy_of_a_test_image_leaves_the_training_set(tmp_path: Path) -> None:
    write(tmp_path / "train" / "cat", 6, 0)
    write(tmp_path / "train" / "dog", 6, 1)
    write(tmp_path / "test" / "cat", 3, 0)  # the first three of the training images
    write(tmp_path / "test" / "dog", 3, 2)
    with pytest.warns(UserWarning, match="3 files are copies"):
        train, test = osp.data.load("folder", tmp_path)
    assert test is not None
    assert train.labels is not None
    assert np.bincount(train.labels).tolist() == [3, 6]
    assert len(test) == 6


@pytest.mark.parametrize("ood", ["pile", "folder"])
def test_sorted_images_inside_the_unsorted_ones_never_get_into_the_pool(tmp_path: Path, ood: str) -> None:
    write(tmp_path / "pics" / "sorted" / "cat", 20, 0)
    write(tmp_path / "pics" / "sorted" / "dog", 20, 1)
    write(tmp_path / "pics" / "holiday", 25, 2)
    shutil.copy(tmp_path / "pics" / "sorted" / "cat" / "003.png", tmp_path / "pics" / "holiday" / "again.png")
    sets = osp.data.load("folder", tmp_path / "pics" / "sorted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of again.png, a copy within the pile, too
        others = osp.data.load(ood, tmp_path / "pics")
    with pytest.warns(UserWarning, match=r"images are both in folder and, byte for byte, in (pile|folder); left out"):
        split = make_split(spec_for("folder", ood, seed=0), *sets, *others)
    train, test = sets
    assert test is not None
    offset = {"pool": len(train), "test": len(test)}
    drawn = [others[0].files[row - offset["pool"]] for row in split.unlabeled if row >= offset["pool"]]  # type: ignore[index]
    held = [] if others[1] is None else [others[1].files[row - offset["test"]] for row in split.test_ood]  # type: ignore[index]
    assert len(drawn) + len(held) == 25
    assert {Path(file).parent.name for file in (*drawn, *held)} == {"holiday"}
    assert "again.png" not in {Path(file).name for file in (*drawn, *held)}
    split.check(train, test, *others)


def test_a_pile_without_common_files_is_split_as_ever(photos: Path, recwarn: pytest.WarningsRecorder) -> None:
    write(photos / "unsorted" / "deep", 30, 5)
    (photos / "sorted").mkdir()
    for name in ("cat", "dog"):
        (photos / name).rename(photos / "sorted" / name)
    sets = osp.data.load("folder", photos / "sorted")
    split = make_split(spec_for("folder", "pile", seed=0), *sets, *osp.data.load("pile", photos / "unsorted"))
    assert split.unlabeled_is_ood.sum() == 30
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]


def test_links_to_folders_neither_multiply_images_nor_carry_them_into_classes(photos: Path) -> None:
    (photos / "cat" / "up").symlink_to("..", target_is_directory=True)
    (photos / "cat" / "here").symlink_to(".", target_is_directory=True)
    (photos / "kitten").symlink_to("cat", target_is_directory=True)
    (photos / "all").symlink_to(".", target_is_directory=True)
    with pytest.warns(UserWarning, match=r"Linked folders .* not followed: 3 \(all; kitten; cat.up\)"):
        train, test = osp.data.load("folder", photos)
    assert test is not None
    assert train.class_names == ("cat", "dog")
    assert len(train) + len(test) == 40


def test_a_class_may_be_a_link_to_a_folder_elsewhere(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write(tmp_path / "store" / "cats", 5, 0)
    write(tmp_path / "store" / "dogs", 5, 1)
    (tmp_path / "photos").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).symlink_to(tmp_path / "store" / f"{name}s", target_is_directory=True)
    assert osp.data.describe_set("folder", tmp_path / "photos").train == (4, 4)
    assert len(osp.data.load("folder", tmp_path / "photos")[0]) == 8
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]


def test_a_pile_that_links_to_itself_is_counted_once_at_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "pile"
    for number in range(30):
        deep = deep / f"{number}"
    write(deep, 3, 0)
    write(tmp_path / "pile", 4, 1)
    write(tmp_path / "elsewhere", 5, 2)
    (tmp_path / "pile" / "loop").symlink_to(".", target_is_directory=True)
    (deep / "back").symlink_to(tmp_path / "pile", target_is_directory=True)
    (deep / "self.txt").symlink_to("self.txt")
    (tmp_path / "pile" / "out").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    found = walk(tmp_path / "pile")
    assert (len(found.files), [Path(link).name for link in found.links]) == (7, ["out"])
    with pytest.warns(UserWarning, match=r"Linked folders .* not followed: 1 \(out\)"):
        assert len(osp.data.load("pile", tmp_path / "pile")[0]) == 7


def test_files_that_are_no_readable_images_are_counted_by_kind(photos: Path) -> None:
    for name in ("a.CR2", "b.cr2", "film.mp4", "scan", "notes.txt", "Thumbs.db", ".hidden.nef"):
        (photos / "cat" / name).write_bytes(b"something")
    with pytest.warns(UserWarning, match=r"passed over: 4 \(2 \.cr2, 1 \.mp4, 1 without an extension\)"):
        train, _ = osp.data.load("folder", photos)
    assert len(train) == 32
    with pytest.warns(UserWarning, match="passed over: 4"):
        osp.data.load("pile", photos)


def test_more_than_five_unreadable_files_are_all_kept_in_skipped(photos: Path) -> None:
    for number in range(8):
        (photos / "cat" / f"broken{number}.jpg").write_text(f"no image {number}")
    with pytest.warns(
        UserWarning, match=r"8 of 48 images .*; and 3 more, all of them listed in the ImageSet's `skipped`"
    ):
        train, test = osp.data.load("folder", photos)
    assert test is not None
    assert len(train.skipped) + len(test.skipped) == 8
