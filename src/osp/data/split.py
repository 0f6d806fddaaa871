"""Which images are labelled, unlabelled, held out: decided once, from a seed, and stored in the run.

Each class has one order, drawn from (seed, class) alone, and is cut into labelled | validation | unlabelled. So the
labelled and the validation images stay the same at every OOD ratio, and raising the ratio at a fixed total only takes
unlabelled ID images away and adds OOD images: runs at two ratios differ in nothing else.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.imageset import ImageSet
from osp.errors import UserError, suggest
from osp.randomness import permutation

DEFAULT_OOD_RATIO = 0.6
"""Used where OOD classes of the same set make up the OOD images; the paper reports 0.3 and 0.6."""


@dataclass(frozen=True)
class SplitSpec:
    """What is asked for; `make_split` says whether the images allow it."""

    id_classes: tuple[int | str, ...] | None
    """Class numbers or names, in the order of the new labels; None = all classes."""
    labels_per_class: int
    unlabeled: int | None
    """Total of unlabelled images, ID and OOD; None = as many as fit."""
    ood_ratio: float | None
    """Share of OOD in the unlabelled images; None = what results from `ood_count`, or from taking all there are."""
    ood_count: int | None
    """Number of OOD images, in place of a ratio; None = all (where there is no ratio either)."""
    val_per_class: int
    seed: int


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

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields by name, as split.npz holds them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an npz with one array a field; the file is there whole or not at all."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with open(partial, "wb") as file:
                np.savez(file, allow_pickle=False, **{field.name: getattr(self, field.name) for field in fields(self)})
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Split:
        """Read what `save` wrote."""
        expected = {field.name: np.bool_ if field.name == "unlabeled_is_ood" else np.int64 for field in fields(cls)}
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except FileNotFoundError:
            raise UserError(f"{os.fspath(path)}: there is no such split file.") from None
        except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as problem:
            raise UserError(f"{os.fspath(path)} is not a split file: {problem}") from None
        if {name: array.dtype.type for name, array in arrays.items()} != expected:
            raise UserError(
                f"{os.fspath(path)} is not a split file: it should hold the arrays {', '.join(expected)} "
                f"and holds {', '.join(arrays) or 'none'}."
            )
        split = cls(**arrays)
        pairs = (
            (split.labeled, split.labeled_targets),
            (split.val, split.val_targets),
            (split.test, split.test_targets),
            (split.unlabeled, split.unlabeled_is_ood),
        )
        if any(a.ndim != 1 or a.shape != b.shape for a, b in pairs):
            raise UserError(f"{os.fspath(path)} is not a split file: its arrays differ in length.")
        return split


@dataclass(frozen=True)
class _Group:
    """The images of one class, or those without a class, in the order in which they are drawn."""

    name: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


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
    the same at every ratio.
    """
    classes = resolve_classes(spec.id_classes, train)
    _check_numbers(spec)
    inter = ood_train is not None or ood_test is not None
    named = train.class_names
    id_groups = [_group(train, number, spec.seed, "split", number) for number in classes]
    if inter:
        ood_groups = [] if ood_train is None else _ood_groups(ood_train, (), len(train), spec.seed, "split", "ood")
    else:
        ood_groups = _ood_groups(train, classes, 0, spec.seed, "split")
    held = _check_labels(spec, id_groups)
    rest = [_Group(group.name, group.rows[held:]) for group in id_groups]
    source = ood_train.name if ood_train is not None else ood_test.name if ood_test is not None else None
    id_counts, ood_counts = _unlabeled_counts(spec, rest, ood_groups, train.name, source)

    labeled, labeled_targets = _with_targets([group.rows[: spec.labels_per_class] for group in id_groups])
    val, val_targets = _with_targets([group.rows[spec.labels_per_class : held] for group in id_groups])
    unlabeled_id = _concatenate([group.rows[:n] for group, n in zip(rest, id_counts, strict=True)])
    unlabeled_ood = _concatenate([group.rows[:n] for group, n in zip(ood_groups, ood_counts, strict=True)])
    unlabeled = np.concatenate([unlabeled_id, unlabeled_ood])
    is_ood = np.repeat([False, True], [len(unlabeled_id), len(unlabeled_ood)])
    order = np.argsort(unlabeled, kind="stable")

    if test is not None and named and test.class_names and test.class_names != named:
        raise UserError(
            f"{train.name}: the training images have the classes {_few(named)}, the test images "
            f"{_few(test.class_names)}; both need the same classes in the same order."
        )
    test_labels = np.empty(0, np.int64) if test is None or test.labels is None else np.asarray(test.labels)
    test_rows, test_targets = _with_targets([np.flatnonzero(test_labels == number) for number in classes])
    if inter:
        first = 0 if test is None else len(test)
        test_ood = np.arange(first, first + (0 if ood_test is None else len(ood_test)), dtype=np.int64)
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


def resolve_classes(id_classes: Sequence[int | str] | None, train: ImageSet) -> list[int]:
    """The class numbers meant by numbers, names, or numbers written as text (`"3"`, where no class has that name)."""
    names = train.class_names
    if train.labels is None or not len(train.labels) or int(np.max(train.labels)) < 0:
        where = Path(train.files[0]).parent if train.files else None
        hint = f" {where} has images but no folders of classes; perhaps its parent is meant." if where else ""
        raise UserError(f"id_classes: the images of {train.name} have no classes; a set with labels is needed.{hint}")
    count = max(len(names), int(np.max(train.labels)) + 1)
    if id_classes is None:
        chosen = list(range(count))
    else:
        chosen = [_class_number(given, names, count, train.name) for given in id_classes]
        for position, number in enumerate(chosen):
            if number in chosen[:position]:
                raise UserError(f"id_classes: class {_class_name(train, number)} is named twice; once is enough.")
    if len(chosen) < 2:
        raise UserError(
            f"id_classes: {len(chosen)} given, but a classifier needs at least 2 of {train.name}'s {count}."
        )
    return chosen


def _class_number(given: int | str, names: Sequence[str], count: int, set_name: str) -> int:
    if isinstance(given, str):
        if names.count(given) > 1:
            numbers = [str(number) for number, name in enumerate(names) if name == given]
            raise UserError(f"id_classes: {given!r} is the name of classes {' and '.join(numbers)}; give the number.")
        if given in names:
            return names.index(given)
        if not given.strip().isdecimal():
            raise UserError(f"id_classes: {set_name} has no class {given!r}.{_suggest(given, names)}")
    number = int(given)
    if not 0 <= number < count:
        raise UserError(f"id_classes: {set_name} has no class {number}; its classes are 0 to {count - 1}.")
    return number


def _suggest(word: str, names: Sequence[str]) -> str:
    hint = suggest(word, names)
    return hint if len(hint) < 400 else f" It has {len(names)} classes: {_few(names)}."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:4])}, ..., {names[-1]}"


def _class_name(images: ImageSet, number: int) -> str:
    if number < len(images.class_names) and images.class_names[number] != str(number):
        return f"{number} ({images.class_names[number]})"
    return str(number)


def _group(images: ImageSet, number: int, *key: int | str, offset: int = 0) -> _Group:
    """One class in drawn order; number -1 stands for the images without a class."""
    if images.labels is None:
        rows = np.arange(len(images), dtype=np.int64)
    else:
        labels = np.asarray(images.labels)
        rows = np.flatnonzero(labels == number if number >= 0 else labels < 0).astype(np.int64)
    name = f"class {_class_name(images, number)}" if number >= 0 else f"{images.name} (images without a class)"
    return _Group(name, offset + rows[permutation(len(rows), *key)])


def _ood_groups(images: ImageSet, not_these: Sequence[int], offset: int, *key: int | str) -> list[_Group]:
    """The classes that have images and are not ID, then the images without a class where there are any."""
    present = np.unique(images.labels) if images.labels is not None else np.array([-1] if len(images) else [])
    numbers = [int(number) for number in present if number >= 0 and number not in not_these]
    if (present < 0).any():
        numbers.append(-1)
    return [_group(images, number, *key, number, offset=offset) for number in numbers]


def _check_numbers(spec: SplitSpec) -> None:
    if spec.labels_per_class < 1:
        raise UserError(f"labels_per_class: {spec.labels_per_class} given, but every class needs at least 1 label.")
    for name in ("unlabeled", "ood_count", "val_per_class"):
        value = getattr(spec, name)
        if value is not None and value < 0:
            raise UserError(f"{name}: {value} given, but it cannot be negative.")
    if spec.ood_ratio is not None:
        if not 0 <= spec.ood_ratio <= 1:  # NaN fails this too
            raise UserError(f"ood_ratio: {spec.ood_ratio} given, but a share lies between 0 and 1.")
        if spec.ood_count is not None:
            raise UserError(
                f"ood_ratio {spec.ood_ratio} and ood_count {spec.ood_count} both say how many OOD images; give one."
            )


def _check_labels(spec: SplitSpec, groups: Sequence[_Group]) -> int:
    """How many images of each class are held back from the unlabelled ones, if every class has as many."""
    smallest = min(groups, key=len)
    labels, val, available = spec.labels_per_class, spec.val_per_class, len(smallest)
    if labels > available:
        beside = f" beside {val} validation images (val_per_class)" if val else ""
        raise UserError(
            f"labels_per_class: {labels} labels a class asked for, but {smallest.name} has only {_images(available)} "
            f"for training; the largest that fits{beside} is {max(available - val, 0)}."
        )
    if labels + val > available:
        raise UserError(
            f"val_per_class: {labels} labelled and {val} validation images a class asked for, but {smallest.name} has "
            f"only {_images(available)}; with {labels} labels the largest val_per_class that fits is "
            f"{available - labels}."
        )
    return labels + val


def _unlabeled_counts(
    spec: SplitSpec, rest: Sequence[_Group], ood: Sequence[_Group], set_name: str, source: str | None
) -> tuple[list[int], list[int]]:
    """Unlabelled images of each ID class and of each OOD class."""
    total, available = spec.unlabeled, sum(map(len, ood))
    if not available and (spec.ood_ratio or spec.ood_count):
        asked = f"ood_ratio: {spec.ood_ratio}" if spec.ood_ratio else f"ood_count: {spec.ood_count}"
        none = (
            f"all {len(rest)} classes of {set_name} are ID"
            if source is None
            else f"the OOD source {source} has no training images"
        )
        raise UserError(
            f"{asked} asked for, but there are 0 OOD images: {none}. "
            "Name fewer id_classes, give an OOD source, or ask for an ood_ratio of 0."
        )
    if spec.ood_ratio is not None:
        id_counts, ood_counts = _counts_at_ratio(spec, rest, ood)
    elif spec.ood_count is not None:
        id_counts, ood_counts = _counts_with_ood_count(spec, spec.ood_count, rest, ood)
    elif total is None:
        id_counts, ood_counts = [len(group) for group in rest], [len(group) for group in ood]
    else:
        everything = sum(map(len, rest)) + available
        if total > everything:
            raise UserError(
                f"unlabeled: {total} images asked for, but {everything} are left after the labelled and validation "
                f"images; the largest total that fits is {everything}."
            )
        counts = proportional_counts(total, [len(group) for group in (*rest, *ood)])
        id_counts, ood_counts = counts[: len(rest)], counts[len(rest) :]
    if total and not sum(id_counts) + sum(ood_counts):
        raise UserError(
            f"unlabeled: {total} given, which is less than one image for each of {len(rest)} ID and {len(ood)} OOD "
            f"classes; ask for at least {len(rest) + len(ood)}, or 0 for none."
        )
    return id_counts, ood_counts


def _counts_at_ratio(spec: SplitSpec, rest: Sequence[_Group], ood: Sequence[_Group]) -> tuple[list[int], list[int]]:
    ratio = Fraction(str(spec.ood_ratio))  # as written: 20000 * (1 - 0.9) is 2000, and in floating point is not
    # An ID class's and an OOD class's part of the total; the group with the fewest images decides what fits.
    shares = [((1 - ratio) / len(rest), min(rest, key=len))]
    if ood:
        shares.append((ratio / len(ood), min(ood, key=len)))
    shares = [(share, group) for share, group in shares if share]
    # floor(total * share) <= n  <=>  total < (n + 1) / share; but a class with nothing left allows nothing at all
    fits = [(math.ceil((len(group) + 1) / share) - 1 if len(group) else 0, group) for share, group in shares]
    largest, limit = min(fits, key=lambda fit: fit[0])
    total = largest if spec.unlabeled is None else spec.unlabeled
    id_count = math.floor(total * (1 - ratio) / len(rest))
    ood_count = math.floor(total * ratio / len(ood)) if ood else 0
    if total > largest:
        is_id = any(limit is group for group in rest)
        asked, groups, kind = (id_count, rest, "ID") if is_id else (ood_count, ood, "OOD")
        each = f"of each of the {len(groups)} {kind} classes" if len(groups) > 1 else f"{kind} images"
        raise UserError(
            f"unlabeled: {total} images at ood_ratio {spec.ood_ratio} need {max(asked, 1)} {each}, but {limit.name} "
            f"has {len(limit)}{f' left{_after(spec)}' if is_id else ''}; the largest total that fits at this ratio "
            f"is {largest}."
        )
    return [id_count] * len(rest), [ood_count] * len(ood)


def _counts_with_ood_count(
    spec: SplitSpec, ood_count: int, rest: Sequence[_Group], ood: Sequence[_Group]
) -> tuple[list[int], list[int]]:
    available, total = sum(map(len, ood)), spec.unlabeled
    if ood_count > available:
        raise UserError(
            f"ood_count: {ood_count} OOD images asked for, but there are {available}; "
            f"the largest that fits is {available}."
        )
    ood_counts = even_counts(ood_count, [len(group) for group in ood])
    if total is None:
        return [len(group) for group in rest], ood_counts
    if total < ood_count:
        raise UserError(f"unlabeled: {total} images in all asked for, of which {ood_count} OOD (ood_count).")
    id_count, smallest = (total - ood_count) // len(rest), min(rest, key=len)
    if id_count > len(smallest):
        raise UserError(
            f"unlabeled: {total} images with {ood_count} OOD need {id_count} of each of the {len(rest)} ID classes, "
            f"but {smallest.name} has {len(smallest)} left{_after(spec)}; the largest total that fits is "
            f"{ood_count + len(rest) * (len(smallest) + 1) - 1}."
        )
    return [id_count] * len(rest), ood_counts


def _after(spec: SplitSpec) -> str:
    return f" after {spec.labels_per_class} labelled and {spec.val_per_class} validation images"


def _images(count: int) -> str:
    return f"{count} image" if count == 1 else f"{count} images"


def even_counts(total: int, available: Sequence[int]) -> list[int]:
    """`total` images over classes, as equally as their sizes allow; what does not divide comes from the largest.

    >>> even_counts(10, [5, 1, 9])
    [4, 1, 5]
    """
    counts = [0] * len(available)
    left = min(total, sum(available))
    for done, index in enumerate(sorted(range(len(available)), key=lambda i: (available[i], -i))):
        counts[index] = min(available[index], left // (len(available) - done))
        left -= counts[index]
    return counts


def proportional_counts(total: int, available: Sequence[int]) -> list[int]:
    """`total` images over classes in proportion to their sizes, by largest remainder.

    >>> proportional_counts(5, [10, 20, 4])
    [1, 3, 1]
    """
    everything = sum(available)
    counts = [total * size // everything if everything else 0 for size in available]
    remainders = sorted(range(len(available)), key=lambda i: -(total * available[i] % everything) if everything else 0)
    for index in remainders[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _with_targets(rows_of_class: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted rows and, beside them, the position of their class."""
    rows = _concatenate(rows_of_class)
    targets = np.repeat(np.arange(len(rows_of_class), dtype=np.int64), [len(part) for part in rows_of_class])
    order = np.argsort(rows, kind="stable")
    return rows[order], targets[order]


_INTRA: dict[str, tuple[tuple[int, ...], int, int | None, int]] = {
    # ID classes, labels a class, unlabelled total, validation images a class
    "digits": (tuple(range(6)), 10, None, 10),
    "mnist": (tuple(range(6)), 10, 30_000, 50),
    "cifar10": (tuple(range(2, 8)), 400, 20_000, 50),  # the animals: bird, cat, deer, dog, frog, horse
    "cifar100": (tuple(range(50)), 100, 20_000, 50),
    "tinyimagenet": (tuple(range(100)), 100, 40_000, 50),
}


def paper_split(data: str, ood_data: str | None = None) -> dict[str, Any]:
    """The fields of SplitSpec but for the seed: the paper's where it has the set, else what suits any folder.

    Table 3 (intra-dataset) and the inter-dataset settings of the paper; 50 validation images a class as in its code.

    >>> paper_split("mnist")["unlabeled"], paper_split("cifar10", "lsun")["ood_count"]
    (30000, 10000)
    """
    every_class: dict[str, Any] = {"id_classes": None, "unlabeled": None, "ood_ratio": None, "ood_count": None}
    if ood_data is None:
        if data in _INTRA:
            id_classes, labels, unlabeled, val = _INTRA[data]
            return every_class | {
                "id_classes": id_classes,
                "labels_per_class": labels,
                "unlabeled": unlabeled,
                "ood_ratio": DEFAULT_OOD_RATIO,
                "val_per_class": val,
            }
        if data == "stl10":
            # 100 labelled and 200 unlabelled of the 500 images a class, 20,000 of the part without labels.
            sizes = {"labels_per_class": 100, "unlabeled": 22_000, "ood_count": 20_000, "val_per_class": 50}
            return every_class | sizes
    if data == "cifar10":
        return every_class | {"labels_per_class": 25, "ood_count": 10_000, "val_per_class": 500}
    _, labels, _, val = _INTRA.get(data, (None, 10, None, 5))
    return every_class | {"labels_per_class": labels, "val_per_class": val}


def spec_for(
    data: str, ood_data: str | None = None, *, seed: int, smallest_class: int | None = None, **given: Any
) -> SplitSpec:
    """`paper_split` with what the user set in place of its defaults; None = not set.

    A default that only makes sense with another default goes with it: a ratio replaces the paper's number of OOD images
    (and the total made from it), a number of OOD images replaces the ratio. Where the size of the smallest ID class is
    given, the defaults for sets the paper does not have are made to fit it: half of it labels at most, and at most half
    of the rest validation.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    defaults = paper_split(data, ood_data)
    if "ood_ratio" in chosen and defaults["ood_count"] is not None:
        defaults |= {"ood_count": None, "unlabeled": None}
    if "ood_count" in chosen:
        defaults |= {"ood_ratio": None, "unlabeled": None}
    if smallest_class is not None and data not in _INTRA and data != "stl10":
        defaults["labels_per_class"] = max(1, min(defaults["labels_per_class"], smallest_class // 2))
        left = max(0, smallest_class - chosen.get("labels_per_class", defaults["labels_per_class"]))
        defaults["val_per_class"] = min(defaults["val_per_class"], left // 2)
    return SplitSpec(**(defaults | chosen), seed=seed)
