"""Split: which images are which, as index arrays, kept in a file that is checked when it is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from osp.data.imageset import ImageSet
from osp.errors import UserError
from osp.files import read_arrays, write_arrays


@dataclass(frozen=True)
class Split:
    """Indices into the images, each array sorted, pairwise disjoint within training and within test.

    Training indices count through the ID set and on through the OOD source, where that is another set; test indices do
    the same. The classes of unlabelled images are not kept: only whether each is OOD, for metrics alone.
    """

    labeled: np.ndarray
    unlabeled: np.ndarray
    val: np.ndarray
    test: np.ndarray
    test_ood: np.ndarray
    unlabeled_is_ood: np.ndarray
    """bool, beside `unlabeled`."""
    id_classes: np.ndarray
    """The set's class numbers of the new labels 0..K-1."""
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
