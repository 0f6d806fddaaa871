from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp.data
from helpers.published_files import save_images
from osp.data.sources.folder import list_files
from osp.engine.data import open_data
from osp.errors import UserError
from osp.recipe import Recipe, make_plan


def test_real_photos_in_class_folders_give_a_stratified_fixed_test_set(real_data: Callable[..., Path]) -> None:
    root = real_data("photos") / "photos"
    steps: list[tuple[int, int, str]] = []
    train, test = osp.data.load("folder", root, size=48, progress=lambda *step: steps.append(step))
    assert test is not None
    assert train.class_names == ("buildings", "forest", "glacier", "mountain", "sea", "street")
    assert train.labels is not None
    assert test.labels is not None
    assert np.bincount(train.labels).tolist() == [144] * 6
    assert np.bincount(test.labels).tolist() == [36] * 6
    assert train.shape == (3, 48, 48)
    assert train.files is not None
    assert test.files is not None
    assert not set(train.files) & set(test.files)
    for index in (0, 500, 863):
        assert Path(train.files[index]).parent.name == train.class_names[train.labels[index]]
    np.testing.assert_allclose(train.mean, train.images.mean(axis=(0, 2, 3)) / 255, atol=1e-4)
    np.testing.assert_allclose(train.std, train.images.std(axis=(0, 2, 3)) / 255, atol=1e-4)
    again, _ = osp.data.load("folder", root, size=48)
    assert again.files == train.files
    assert isinstance(again.images, np.memmap)


def test_progress_counts_up_to_all_files(tmp_path: Path) -> None:
    save_images(tmp_path / "a", 30)
    steps: list[tuple[int, int, str]] = []
    osp.data.load("folder", tmp_path, progress=lambda *step: steps.append(step))
    assert steps[-1][:2] == (30, 30)


def test_train_and_test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("val", 2)):
        for seed, name in enumerate(("cat", "dog")):
            save_images(tmp_path / part / name, count, seed=10 * count + seed)
    train, test = osp.data.load("folder", tmp_path)
    assert test is not None
    assert test.labels is not None
    assert (len(train), test.labels.tolist()) == (10, [0, 0, 1, 1])
    save_images(tmp_path / "val" / "bird", 1)
    with pytest.raises(UserError, match="class 'bird'"):
        osp.data.load("folder", tmp_path)


def test_folders_of_images_beside_train_are_never_passed_over_without_a_word(tmp_path: Path) -> None:
    for seed, name in enumerate(("bus", "car", "train", "notes")):
        save_images(tmp_path / name, 5 if name != "notes" else 0, seed=seed)
    with pytest.warns(
        UserWarning, match=r"only the folder train was read.* beside it: bus; car\. If these are classes"
    ):
        train, _ = osp.data.load("folder", tmp_path)
    assert train.class_names == ()
    assert any("bus; car" in note for note in osp.data.describe_set("folder", tmp_path).notes)


def test_a_flat_pile_has_no_labels(tmp_path: Path) -> None:
    save_images(tmp_path, 10)
    train, test = osp.data.load("folder", tmp_path)
    assert test is not None
    assert train.labels is None
    assert test.labels is None
    assert (len(train), len(test), train.class_names) == (8, 2, ())
    assert train.shape == (3, 32, 32)


def test_loose_images_beside_classes_are_unlabeled_training_images(tmp_path: Path) -> None:
    save_images(tmp_path / "cat", 5)
    save_images(tmp_path / "dog", 5, seed=1)
    save_images(tmp_path, 3, seed=2)
    train, test = osp.data.load("folder", tmp_path)
    assert train.labels is not None
    assert test is not None
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [-1] * 3
    assert len(test) == 2


def test_hidden_files_and_other_files_are_ignored_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    save_images(tmp_path / "cat", 5)
    for name in ("Thumbs.db", "notes.txt", ".DS_Store", "._000.png", ".hidden.jpg"):
        (tmp_path / "cat" / name).write_bytes(b"something")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    train, _ = osp.data.load("folder", tmp_path)
    assert (len(train), train.class_names, train.skipped) == (4, ("cat",), ())
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]


def test_unreadable_images_are_left_out_counted_and_listed_at_every_load(tmp_path: Path) -> None:
    save_images(tmp_path / "train" / "cat", 6)
    save_images(tmp_path / "train" / "dog", 6, seed=1)
    save_images(tmp_path / "test" / "dog", 3, seed=2)
    whole = (tmp_path / "train" / "cat" / "000.png").read_bytes()
    (tmp_path / "train" / "cat" / "000.png").write_bytes(whole[:100])
    (tmp_path / "train" / "dog" / "list.jpg").write_text("milk, bread")
    (tmp_path / "train" / "dog" / "nowhere.jpg").symlink_to(tmp_path / "nothing")
    (tmp_path / "test" / "dog" / "001.png").write_bytes(b"")
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"4 of 17 images in .* were left out"):
            train, test = osp.data.load("folder", tmp_path)
        assert test is not None
        assert train.labels is not None
        assert train.labels.tolist() == [0] * 5 + [1] * 6
        assert [Path(path).name for path, _ in train.skipped] == ["000.png", "list.jpg", "nowhere.jpg"]
        assert [(Path(path).name, reason) for path, reason in test.skipped] == [("001.png", "empty file (0 bytes)")]
        assert train.files is not None
        assert test.files is not None
        assert len(train.files) == 11
        assert [Path(path).name for path in test.files] == ["000.png", "002.png"]
        for images, files in ((train.images, train.files), (test.images, test.files)):
            for pixels, path in zip(images, files, strict=True):
                with Image.open(path) as image:
                    small = image.resize((32, 32), Image.Resampling.BICUBIC)
                np.testing.assert_array_equal(pixels, np.asarray(small).transpose(2, 0, 1))
        np.testing.assert_allclose(train.mean, train.images.mean(axis=(0, 2, 3)) / 255, atol=1e-4)


def test_a_class_left_empty_is_an_error_that_names_it(tmp_path: Path) -> None:
    save_images(tmp_path / "cat", 6)
    (tmp_path / "dog").mkdir()
    with pytest.raises(UserError, match="class 'dog'"):
        osp.data.load("folder", tmp_path)
    (tmp_path / "dog" / "a.jpg").write_text("not a dog")
    with pytest.warns(UserWarning, match="1 of"), pytest.raises(UserError, match=r"class 'dog'.*not an image"):
        osp.data.load("folder", tmp_path)


def test_a_test_folder_without_images_is_told(tmp_path: Path) -> None:
    save_images(tmp_path / "train" / "cat", 6)
    (tmp_path / "test").mkdir()
    with pytest.raises(UserError, match=r"There is no image in .*test"):
        osp.data.load("folder", tmp_path)


def test_changed_added_and_removed_files_are_noticed(tmp_path: Path) -> None:
    save_images(tmp_path / "train" / "cat", 4)
    save_images(tmp_path / "test" / "cat", 1, seed=1)
    path = tmp_path / "train" / "cat" / "000.png"

    def first() -> tuple[int, list[int]]:
        train, _ = osp.data.load("folder", tmp_path)
        return len(train), train.images[0, :, 0, 0].tolist()

    first()
    Image.new("RGB", (20, 20), (1, 2, 3)).save(path)
    assert first() == (4, [1, 2, 3])
    status = path.stat()
    Image.new("RGB", (20, 20), (3, 2, 1)).save(path)
    assert path.stat().st_size == status.st_size  # only the time tells
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert first() == (4, [3, 2, 1])
    Image.new("RGB", (20, 20), (9, 9, 9)).save(path.with_name("new.png"))
    assert first()[0] == 5
    path.unlink()
    assert first()[0] == 4


def test_a_moved_folder_and_another_size_have_entries_of_their_own(tmp_path: Path) -> None:
    save_images(tmp_path / "one" / "cat", 5)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    save_images(tmp_path / "two" / "cat", 5, seed=5)
    one, two = (osp.data.load("folder", tmp_path / name)[0] for name in ("one", "two"))
    assert (one.images != two.images).any()
    assert osp.data.load("folder", tmp_path / "one", size=8)[0].shape == (3, 8, 8)


def test_an_empty_folder_a_file_and_a_missing_folder_are_plain_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no image"):
        osp.data.load("folder", tmp_path)
    (tmp_path / "a.jpg").write_text("")
    with pytest.raises(UserError, match="is a file"):
        osp.data.load("folder", tmp_path / "a.jpg")
    with pytest.raises(UserError, match="does not exist"):
        osp.data.load("folder", tmp_path / "missing")
    with pytest.warns(UserWarning, match="1 of 1"), pytest.raises(UserError, match="could be read"):
        osp.data.load("folder", tmp_path)
    with pytest.raises(UserError, match="data_dir, or OSP_DATA"):
        osp.data.load("folder")


def test_a_link_within_the_test_folder_makes_no_test_images_of_another_class(tmp_path: Path) -> None:
    for seed, folder in enumerate(("train/cat", "train/dog", "test/dog")):
        save_images(tmp_path / folder, 4, seed=seed)
    (tmp_path / "test" / "cat").symlink_to(tmp_path / "test" / "dog", target_is_directory=True)
    with pytest.warns(UserWarning, match=r"not followed: 1 \(test.cat\)"):
        _, test = osp.data.load("folder", tmp_path)
    assert test is not None
    assert test.labels is not None
    assert test.labels.tolist() == [1] * 4


def test_too_few_images_for_test_images_are_told_with_what_to_do(tmp_path: Path) -> None:
    for seed, name in enumerate(("cat", "dog")):
        save_images(tmp_path / name, 3, seed=seed)
    with pytest.raises(UserError, match="Give each class at least 5 images"):
        open_data(make_plan(Recipe(data="folder", data_dir=str(tmp_path), method="supervised")))


def test_folders_for_tests_that_are_not_read_are_told_and_are_no_class(tmp_path: Path) -> None:
    for seed, folder in enumerate(("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")):
        save_images(tmp_path / "parts" / folder, 5, seed=seed)
    (note,) = list_files(tmp_path / "parts").notes
    assert "only the folders train and test were read, not the folders of images beside it: val" in note
    for seed, folder in enumerate(("cat", "dog", "test/cat", "test/dog")):
        save_images(tmp_path / "mixed" / folder, 5, seed=seed)
    with pytest.raises(UserError, match="test holds folders named like the classes beside it"):
        list_files(tmp_path / "mixed")
