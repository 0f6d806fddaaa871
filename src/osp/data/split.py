"""Which images are labeled, unlabeled, held out: decided once, from a seed, and stored in the run.

Each class has one order, drawn from (seed, class) alone, and is cut into labeled | validation | unlabeled. So the
labeled and the validation images stay the same at every OOD ratio, and raising the ratio at a fixed total only takes
unlabeled ID images away and adds OOD images: runs at two ratios differ in nothing else.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from osp.data.folders import seen_in
from osp.data.images import ImageSet
from osp.data.split_spec import (
    Group,
    SplitSpec,
    check_numbers,
    class_name,
    few_names,
    held_back,
    paper_split,
    resolve_classes,
    spec_for,
    unlabeled_counts,
)
from osp.errors import UserError, first_few
from osp.files import read_arrays, write_arrays
from osp.randomness import permutation

__all__ = ["Split", "SplitSpec", "make_split", "paper_split", "resolve_classes", "spec_for"]


@dataclass(frozen=True)
class Split:
    """Indices into the images, each array sorted, pairwise disjoint within training and within test.

    Training indices count through the ID set and on through the OOD source, where that is another set; test indices do
    the same. The classes of unlabeled images are not kept: only whether each is OOD, for metrics alone.
    """

    labeled: np.ndarray
    unlabeled: np.ndarray
    val: np.ndarray
    test: np.ndarray
    test_ood: np.ndarray
    unlabeled_is_ood: np.ndarray  # bool, beside `unlabeled`
    id_classes: np.ndarray  # the set's class numbers of the new labels 0..K-1
    labeled_targets: np.ndarray
    val_targets: np.ndarray
    test_targets: np.ndarray

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an npz with one array per field; the file is there whole or not at all."""
        write_arrays(Path(path), self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields by name, as the file holds them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def digest(self) -> str:
        """A hash of all arrays: two processes with the same one have the same split."""
        joined = hashlib.blake2b(digest_size=16)
        for name, array in self.arrays().items():
            joined.update(f"{name} {len(array)} ".encode() + array.tobytes())
        return joined.hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Split:
        """Read what `save` wrote."""
        expected = {field.name: np.bool_ if field.name == "unlabeled_is_ood" else np.int64 for field in fields(cls)}
        try:
            arrays = read_arrays(Path(path))
        except FileNotFoundError:
            raise UserError(f"{os.fspath(path)}: there is no such split file.") from None
        except ValueError as error:
            raise UserError(f"{os.fspath(path)} is not a split file: {error}") from None
        if {name: array.dtype.type for name, array in arrays.items()} != expected:
            raise UserError(
                f"{os.fspath(path)} is not a split file: it should hold the arrays {', '.join(expected)} "
                f"and holds {', '.join(arrays) or 'none'}."
            )
        split = cls(**arrays)
        if problem := next(split._problems(), None):
            raise UserError(f"{os.fspath(path)} is not a split file: {problem}.")
        return split

    def _problems(self) -> Iterator[str]:
        """What is wrong with the arrays, whatever the images."""
        every = self.arrays()
        beside = (
            ("labeled", "labeled_targets"),
            ("val", "val_targets"),
            ("test", "test_targets"),
            ("unlabeled", "unlabeled_is_ood"),
        )
        if any(array.ndim != 1 for array in every.values()) or any(len(every[a]) != len(every[b]) for a, b in beside):
            yield "its arrays differ in length"
            return
        for name in ("labeled", "unlabeled", "val", "test", "test_ood", "id_classes"):
            if (every[name] < 0).any():
                yield f"{name} has the negative number {every[name].min()}"
            if len(np.unique(every[name])) < len(every[name]):
                yield f"{name} has a number twice"
        for one, other in (("labeled", "val"), ("labeled", "unlabeled"), ("val", "unlabeled"), ("test", "test_ood")):
            if len(both := np.intersect1d(every[one], every[other])):
                yield f"{len(both)} images are both in {one} and in {other}"
        for name in ("labeled_targets", "val_targets", "test_targets"):
            wrong = every[name][(every[name] < 0) | (every[name] >= len(self.id_classes))]
            if len(wrong):
                yield f"{name} has {wrong[0]}, but there are {len(self.id_classes)} classes"

    def check(
        self,
        train: ImageSet,
        test: ImageSet | None = None,
        ood_train: ImageSet | None = None,
        ood_test: ImageSet | None = None,
        name: str = "split.npz",
    ) -> None:
        """Refuse a split that does not fit these images: rows that are not there, or of other classes."""
        for part, sets in (
            ("labeled", (train, ood_train)),
            ("val", (train, ood_train)),
            ("unlabeled", (train, ood_train)),
            ("test", (test, ood_test)),
            ("test_ood", (test, ood_test)),
        ):
            there = sum(len(each) for each in sets if each is not None)
            rows = getattr(self, part)
            if len(rows) and rows.max() >= there:
                raise UserError(f"{name} does not fit the images: {part} has row {rows.max()}, but there are {there}.")
        for part, images in (("labeled", train), ("val", train), ("test", test)):
            rows, targets = getattr(self, part), getattr(self, f"{part}_targets")
            labels = None if images is None else images.labels
            if len(rows) and (labels is None or (rows >= len(labels)).any()):
                raise UserError(f"{name} does not fit the images: {part} has images without a class.")
            if labels is not None and (labels[rows] != self.id_classes[targets]).any():
                raise UserError(f"{name} does not fit the images: {part} has images of other classes than it says.")
        inside = self.unlabeled < len(train)
        is_id = np.zeros(len(self.unlabeled), bool)
        if train.labels is not None:
            is_id[inside] = np.isin(train.labels[self.unlabeled[inside]], self.id_classes)
        if (is_id == self.unlabeled_is_ood).any():
            raise UserError(f"{name} does not fit the images: unlabeled_is_ood says otherwise than their classes.")


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
    the K ID classes gives floor(N (1 - r) / K) unlabeled images and each of the G OOD classes floor(N r / G), a source
    without classes counting as one. Images of the source whose files are also in the ID set are left out, with a
    warning.
    """
    classes = resolve_classes(spec.id_classes, train)
    spec = check_numbers(spec)
    copies, test_copies = _copies(train, test, ood_train, ood_test)
    inter = ood_train is not None or ood_test is not None
    named = train.class_names
    id_groups, ood_groups = _groups(train, classes, spec.seed, "split"), []
    if not inter:
        ood_groups = _groups(train, _others(train, classes), spec.seed, "split")
    elif ood_train is not None:
        key = (spec.seed, "split", "ood")
        ood_groups = _groups(ood_train, _others(ood_train, ()), *key, offset=len(train), without=copies)
    ood_groups = [group for group in ood_groups if len(group)]
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


def _groups(
    images: ImageSet, numbers: Sequence[int], *key: int | str, offset: int = 0, without: np.ndarray | None = None
) -> list[Group]:
    """These classes in drawn order; -1 stands for the images without a class."""
    labels, groups = images.classes, []
    for number in numbers:
        rows = np.flatnonzero(labels == number).astype(np.int64)
        if without is not None:
            rows = np.setdiff1d(rows, without)
        without_class = f"{images.name} (images without a class)"
        name = f"class {class_name(images.class_names, number)}" if number >= 0 else without_class
        groups.append(Group(name, offset + rows[permutation(len(rows), *key, number)]))
    return groups


def _others(images: ImageSet, classes: Sequence[int]) -> list[int]:
    """The classes that have images and are not these, then -1 where there are images without a class."""
    present = np.unique(images.classes).tolist()
    return [number for number in present if number >= 0 and number not in classes] + [-1] * (-1 in present)


def _copies(
    train: ImageSet, test: ImageSet | None, ood_train: ImageSet | None, ood_test: ImageSet | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the OOD source's training and test images that are files of the ID set, too, with a warning.

    The ID set wins: there somebody said what they are. Otherwise labeled or test images would be in the pool.
    """
    known = [path for each in (train, test) if each is not None for path in each.files or ()]
    parts = [(each.files or ()) if each is not None else () for each in (ood_train, ood_test)]
    rows = [np.array(seen_in(files, known), np.int64) for files in parts]
    names = [files[row] for files, found in zip(parts, rows, strict=True) for row in found]
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
