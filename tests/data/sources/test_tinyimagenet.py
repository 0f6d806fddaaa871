from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp.data
from helpers.published_files import tiny_imagenet
from osp.errors import UserError


@pytest.mark.slow
def test_a_second_load_of_the_real_set_decodes_nothing_and_takes_little_memory(
    real_data: Callable[..., Path],
) -> None:
    root = real_data("tinyimagenet")
    train, test = osp.data.load("tinyimagenet", root)
    assert test is not None
    assert train.files is not None
    assert test.files is not None
    for images, files, index in ((train.images, train.files, 77_777), (test.images, test.files, 5_555)):
        with Image.open(files[index]) as image:
            np.testing.assert_array_equal(images[index], np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    program = """
import resource, sys
import osp.data
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decoding = []
train, test = osp.data.load("tinyimagenet", sys.argv[1], progress=lambda *state: decoding.append(state))
print(len(decoding), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    decoding, megabytes = done.stdout.split()
    assert decoding == "0"  # the second time nothing is decoded: half a second instead of a minute
    assert float(megabytes) < 150  # the images alone are 338


def test_classes_follow_wnids_and_names_words_and_images_are_resized(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path)
    train, test = osp.data.load("tinyimagenet", tmp_path)
    assert test is not None
    assert train.class_names == ("crane (n03)", "goldfish", "crane (n02)")
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert test.labels.tolist() == [0, 1, 2, 0]
    assert train.shape == (3, 32, 32)
    assert train.variant == "18 training and 4 test images instead of 100,000 and 10,000"
    assert osp.data.load("tinyimagenet", folder, size=64)[0].shape == (3, 64, 64)


def test_validation_images_sorted_into_classes_are_read_too(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path)
    images = folder / "val" / "images"
    for name, wnid in (("000.JPEG", "n03"), ("001.JPEG", "n01")):
        (folder / "val" / wnid).mkdir()
        shutil.move(images / name, folder / "val" / wnid / name)
    shutil.rmtree(images)
    _, test = osp.data.load("tinyimagenet", tmp_path)
    assert test is not None
    assert test.labels is not None
    assert sorted(test.labels.tolist()) == [0, 1]


def test_the_zip_is_unpacked(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path / "source")
    root = tmp_path / "root"
    root.mkdir()
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    train, _ = osp.data.load("tinyimagenet", root)
    assert len(train) == 18
    assert train.variant == "not as published (checksum): tiny-imagenet-200.zip"


def test_a_class_without_images_and_wrong_labels_are_plain_errors(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path)
    notes = folder / "val" / "val_annotations.txt"
    good = notes.read_text()
    notes.write_text(good.replace("n01", "n77"))
    with pytest.raises(UserError, match="class 'n77'"):
        osp.data.load("tinyimagenet", tmp_path)
    notes.write_text(good.replace("001.JPEG", "900.JPEG"))
    with pytest.raises(UserError, match=r"001.JPEG has no line"):
        osp.data.load("tinyimagenet", tmp_path)
    notes.write_text(good)
    for path in (folder / "train" / "n01" / "images").iterdir():
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="6 of 22 images"), pytest.raises(UserError, match="class 'n01'"):
        osp.data.load("tinyimagenet", tmp_path)
    shutil.rmtree(folder / "train" / "n02")
    with pytest.raises(UserError, match="class n02 has no image"):
        osp.data.load("tinyimagenet", tmp_path)
