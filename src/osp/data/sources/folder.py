"""The user's own images: one folder per class, `train` and `test` folders of these, or a flat pile without classes.

Loose images beside class folders belong to the training set with the label -1 (class unknown). Each image is there
once: of copies (the same bytes) one is kept, and what was left out is said (`osp.data.folders`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from osp.data.folders import LabeledFiles, check_root, kinds_in_words, list_classes, subfolders, walk
from osp.data.from_files import own_images
from osp.errors import UserError, first_few

TEST_FOLDERS = ("test", "val", "valid", "validation")


def list_files(root: Path) -> LabeledFiles:
    """The files, copies left out. Without a test folder a fixed fifth of each class is the test set."""
    check_root(root, must_exist=True)
    folders, links = subfolders(root)
    train_root = root / "train" if "train" in folders else root
    test_name = next((name for name in TEST_FOLDERS if name in folders), None) if train_root != root else None
    found, more = list_classes(train_root)
    listed = LabeledFiles(root, tuple(found))
    beside = [name for name in folders if name not in ("train", test_name)] if train_root != root else []
    if passed_over := [name for name in beside if walk(root / name).files]:
        what = f"the folders train and {test_name} were" if test_name else "the folder train was"
        listed.notes.append(
            f"In {root} only {what} read, not the folders of images beside it: {first_few(passed_over)}. "
            "If these are classes, give the folder train another name."
        )
    for name in set(listed.classes).intersection(TEST_FOLDERS):
        if set(subfolders(train_root / name)[0]).intersection(listed.classes):
            raise UserError(
                f"{train_root / name} holds folders named like the classes beside it. Put the classes into a folder "
                f"train beside {name}, or give {name} another name if it is a class."
            )
    listed.found.links += links if train_root == root else [*links, *more]
    for number, each in enumerate(found.values()):
        listed.add(each, number)
    listed.add(walk(train_root, deep=False))
    if not listed.files:
        raise UserError(
            f"There is no image in {train_root}. It should hold one folder of images for each class, "
            f"or images without folders ({kinds_in_words()})."
        )
    if test_name is not None:
        _add_test(listed, root / test_name, train_root)
        if not any(listed.is_test):
            raise UserError(f"There is no image in {root / test_name}. Put test images into it, or take it away.")
    listed.leave_out_copies()
    if test_name is None:
        _set_aside(listed)
    return listed


def _add_test(listed: LabeledFiles, folder: Path, train_root: Path) -> None:
    if not listed.classes:
        listed.add(walk(folder, deep=False), test=True)
        return
    found, links = list_classes(folder)
    listed.found.links += links
    unknown = [name for name in found if name not in listed.classes]
    if unknown:
        raise UserError(f"The class {unknown[0]!r} is in {folder}, but not in {train_root}.")
    for name, each in found.items():
        listed.add(each, listed.classes.index(name), test=True)


def _set_aside(listed: LabeledFiles) -> None:
    """A fifth of each class (of all images where there are no classes) as test, the same at every load."""
    from osp.randomness import permutation

    labels = np.array(listed.labels)
    for number, name in enumerate(listed.classes or ("",), start=0 if listed.classes else -1):
        members = np.flatnonzero(labels == number)
        for index in members[permutation(len(members), "folder", "test", name)[: len(members) // 5]]:
            listed.is_test[index] = True


SOURCE = own_images(list_files, "your own images, one folder per class: data 'folder', data_dir its path")
