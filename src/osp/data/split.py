"""Which images are labelled, unlabelled, held out: decided once, from a seed, and stored in the run.

Each class has one order, drawn from (seed, class) alone, and is cut into labelled | validation | unlabelled. So the
labelled and the validation images stay the same at every OOD ratio, and raising the ratio at a fixed total only takes
unlabelled ID images away and adds OOD images: runs at two ratios differ in nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from osp.data.classes import class_name, few_names, resolve_classes
from osp.data.copies import first_few, rows_seen_in
from osp.data.imageset import ImageSet
from osp.data.split_counts import Group, held_back, unlabeled_counts
from osp.data.split_file import Split
from osp.data.split_spec import SplitSpec, check_numbers, paper_split, spec_for
from osp.errors import UserError
from osp.randomness import permutation

__all__ = ["Split", "SplitSpec", "make_split", "paper_split", "resolve_classes", "spec_for"]


def make_split(
    spec: SplitSpec,
    train: ImageSet,
    test: ImageSet | None,
    ood_train: ImageSet | None = None,
    ood_test: ImageSet | None = None,
) -> Split:
    """Draw the split, or refuse with the numbers: asked, available, largest that fits.

    Without an OOD source the OOD images are those of the other classes and those without a class (label -1). With one
    they are the source's, and the other classes of the ID set are left out altogether. At ratio r and total N each of
    the K ID classes gives floor(N (1 - r) / K) unlabelled images and each of the G OOD classes floor(N r / G), a source
    without classes counting as one. A class's order depends on (seed, class) only: labelled and validation images are
    the same at every ratio. Images of the source whose files are also in the ID set are left out, with a warning.
    """
    classes = resolve_classes(spec.id_classes, train)
    spec = check_numbers(spec)
    copies, test_copies = _copies(train, test, ood_train, ood_test)
    inter = ood_train is not None or ood_test is not None
    named = train.class_names
    id_groups = [_group(train, number, spec.seed, "split", number) for number in classes]
    if inter:
        key = (spec.seed, "split", "ood")
        ood_groups = [] if ood_train is None else _ood_groups(ood_train, (), *key, offset=len(train), without=copies)
    else:
        ood_groups = _ood_groups(train, classes, spec.seed, "split")
    held = held_back(spec, id_groups)
    rest = [Group(group.name, group.rows[held:]) for group in id_groups]
    source = ood_train.name if ood_train is not None else ood_test.name if ood_test is not None else None
    id_counts, ood_counts = unlabeled_counts(spec, rest, ood_groups, train.name, source)

    labeled, labeled_targets = _with_targets([group.rows[: spec.labels_per_class] for group in id_groups])
    val, val_targets = _with_targets([group.rows[spec.labels_per_class : held] for group in id_groups])
    unlabeled_id = _concatenate([group.rows[:n] for group, n in zip(rest, id_counts, strict=True)])
    unlabeled_ood = _concatenate([group.rows[:n] for group, n in zip(ood_groups, ood_counts, strict=True)])
    unlabeled = np.concatenate([unlabeled_id, unlabeled_ood])
    is_ood = np.repeat([False, True], [len(unlabeled_id), len(unlabeled_ood)])
    order = np.argsort(unlabeled, kind="stable")

    if test is not None and named and test.class_names and test.class_names != named:
        raise UserError(
            f"{train.name}: the training images have the classes {few_names(named)}, the test images "
            f"{few_names(test.class_names)}; both need the same classes in the same order."
        )
    test_labels = np.empty(0, np.int64) if test is None or test.labels is None else np.asarray(test.labels)
    test_rows, test_targets = _with_targets([np.flatnonzero(test_labels == number) for number in classes])
    if inter:
        first = 0 if test is None else len(test)
        rows = np.arange(0 if ood_test is None else len(ood_test), dtype=np.int64)
        test_ood = first + np.setdiff1d(rows, test_copies)
    else:
        test_ood = np.flatnonzero((test_labels >= 0) & ~np.isin(test_labels, classes)).astype(np.int64)
    return Split(
        labeled=labeled,
        unlabeled=unlabeled[order],
        val=val,
        test=test_rows,
        test_ood=test_ood,
        unlabeled_is_ood=is_ood[order],
        id_classes=np.asarray(classes, np.int64),
        labeled_targets=labeled_targets,
        val_targets=val_targets,
        test_targets=test_targets,
    )


def _group(images: ImageSet, number: int, *key: int | str, offset: int = 0, without: np.ndarray | None = None) -> Group:
    """One class in drawn order; number -1 stands for the images without a class."""
    if images.labels is None:
        rows = np.arange(len(images), dtype=np.int64)
    else:
        labels = np.asarray(images.labels)
        rows = np.flatnonzero(labels == number if number >= 0 else labels < 0).astype(np.int64)
    name = (
        f"class {class_name(images.class_names, number)}" if number >= 0 else f"{images.name} (images without a class)"
    )
    if without is not None and len(without):
        rows = np.setdiff1d(rows, without)
    return Group(name, offset + rows[permutation(len(rows), *key)])


def _ood_groups(
    images: ImageSet,
    not_these: Sequence[int],
    *key: int | str,
    offset: int = 0,
    without: np.ndarray | None = None,
) -> list[Group]:
    """The classes that have images and are not ID, then the images without a class where there are any."""
    present = np.unique(images.labels) if images.labels is not None else np.array([-1] if len(images) else [])
    numbers = [int(number) for number in present if number >= 0 and number not in not_these]
    if (present < 0).any():
        numbers.append(-1)
    groups = [_group(images, number, *key, number, offset=offset, without=without) for number in numbers]
    return [group for group in groups if len(group)]


def _copies(
    train: ImageSet, test: ImageSet | None, ood_train: ImageSet | None, ood_test: ImageSet | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the OOD source's training and test images that are files of the ID set, too, with a warning.

    The ID set wins: there somebody said what they are. Otherwise labelled or test images would be in the pool.
    """
    rows = [
        np.empty(0, np.int64) if each is None else rows_seen_in(each, (train, test)) for each in (ood_train, ood_test)
    ]
    names = [each.files[row] for each, found in zip((ood_train, ood_test), rows, strict=True)
             if each is not None and each.files for row in found]  # fmt: skip
    if names:
        ood = ood_train or ood_test
        assert ood is not None
        what = "1 image is" if len(names) == 1 else f"{len(names)} images are"
        warnings.warn(
            f"{what} both in {train.name} and, byte for byte, in {ood.name}; left out there, since no image may be in "
            f"two parts ({first_few(names)}).",
            stacklevel=3,
        )
    return rows[0], rows[1]


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _with_targets(rows_of_class: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted rows and, beside them, the position of their class."""
    rows = _concatenate(rows_of_class)
    targets = np.repeat(np.arange(len(rows_of_class), dtype=np.int64), [len(part) for part in rows_of_class])
    order = np.argsort(rows, kind="stable")
    return rows[order], targets[order]
