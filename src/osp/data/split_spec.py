"""What is asked of a split: which classes, how many images of each, and a refusal with the numbers where it cannot be.

The fields are the user's, the paper's settings, or what suits any other set. A refusal says what was asked, what is
available and the largest that fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.images import ImageSet
from osp.data.source import SplitDefaults, get, known
from osp.errors import UserError, suggest


@dataclass(frozen=True)
class SplitSpec(SplitDefaults):
    """What is asked for; `make_split` says whether the images allow it."""

    seed: int = 0
    id_count: int | None = None
    """Number of unlabeled ID images, in place of a total; None = what `unlabeled` leaves, or all there are."""


def paper_split(data: str, ood_data: str | None = None) -> dict[str, Any]:
    """The fields of SplitSpec but for the seed: the paper's where it has the set, else what suits any folder.

    Table 3 (intra-dataset) and the inter-dataset settings of the paper; 50 validation images per class as in its code.
    Each set's file holds them.

    >>> paper_split("mnist")["unlabeled"], paper_split("cifar10", "lsun")["ood_count"]
    (30000, 10000)
    """
    found = get(data) if known(data) else None
    within, across = (found.within, found.across) if found else (None, None)
    if ood_data is not None and across is None and within is not None:
        across = SplitDefaults(labels_per_class=within.labels_per_class, val_per_class=within.val_per_class)
    chosen = within if ood_data is None else across
    return asdict(chosen or SplitDefaults()) | {"id_count": None}


def spec_for(
    data: str, ood_data: str | None = None, *, seed: int, smallest_class: int | None = None, **given: Any
) -> SplitSpec:
    """`paper_split` with what the user set in place of its defaults; None = not set.

    A default that only makes sense with another default goes with it: a ratio replaces the paper's number of OOD images
    (and the total made from it), a number of ID or OOD images replaces ratio and total. Where the size of the smallest
    ID class is given (`describe_set(...).smallest_class`), the defaults for sets the paper does not have are made to
    fit it: half of it labels at most, and at most half of the rest validation.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    defaults = paper_split(data, ood_data)
    if "ood_ratio" in chosen and defaults["ood_count"] is not None:
        defaults |= {"ood_count": None, "unlabeled": None}
    if "ood_count" in chosen or "id_count" in chosen:
        defaults |= {"ood_ratio": None, "unlabeled": None}
    if smallest_class is not None and not (known(data) and get(data).within):
        defaults["labels_per_class"] = max(1, min(defaults["labels_per_class"], smallest_class // 2))
        left = max(0, smallest_class - chosen.get("labels_per_class", defaults["labels_per_class"]))
        defaults["val_per_class"] = min(defaults["val_per_class"], left // 2)
    return SplitSpec(**(defaults | chosen), seed=seed)


def check_numbers(spec: SplitSpec) -> SplitSpec:
    """Refuse numbers that mean nothing or contradict each other; a total beside `id_count` becomes an `ood_count`."""
    if spec.labels_per_class < 1:
        raise UserError(f"labels_per_class: {spec.labels_per_class} given, but every class needs at least 1 label.")
    for name in ("unlabeled", "id_count", "ood_count", "val_per_class"):
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
        if spec.id_count is not None:
            raise UserError(
                f"id_count {spec.id_count} and ood_ratio {spec.ood_ratio}: give id_count with ood_count, "
                "or ood_ratio with a total (unlabeled)."
            )
    if spec.id_count is None or spec.unlabeled is None:
        return spec
    ood_count = spec.unlabeled - spec.id_count if spec.ood_count is None else spec.ood_count
    if ood_count < 0 or spec.id_count + ood_count != spec.unlabeled:
        raise UserError(
            f"unlabeled: {spec.unlabeled} images in all asked for, but id_count {spec.id_count} and ood_count "
            f"{max(ood_count, 0)} make {spec.id_count + max(ood_count, 0)}. Leave `unlabeled` out: it is their sum."
        )
    return replace(spec, unlabeled=None, ood_count=ood_count)


def resolve_classes(id_classes: Sequence[int | str] | None, train: ImageSet) -> list[int]:
    """The class numbers meant by numbers, names, or numbers written as text (`"3"`, where no class has that name)."""
    if train.labels is None or not len(train.labels) or int(np.max(train.labels)) < 0:
        where = Path(train.files[0]).parent if train.files else None
        hint = f" {where} has images but no folders of classes; perhaps its parent is meant." if where else ""
        raise UserError(f"id_classes: the images of {train.name} have no classes; a set with labels is needed.{hint}")
    names = train.class_names
    names = (*names, *map(str, range(len(names), int(np.max(train.labels)) + 1)))
    chosen = list(range(len(names))) if id_classes is None else class_numbers(id_classes, names, train.name)
    if len(chosen) < 2:
        said = f"{len(chosen)} given" if id_classes is not None else f"{train.name} has one class"
        raise UserError(f"id_classes: {said}, but a classifier needs at least 2 of {train.name}'s {len(names)}.")
    return chosen


def class_numbers(id_classes: Sequence[int | str], names: Sequence[str], set_name: str) -> list[int]:
    """The numbers of these classes, in the order given; one named twice is refused."""
    chosen = [_class_number(given, names, set_name) for given in id_classes]
    for position, number in enumerate(chosen):
        if number in chosen[:position]:
            raise UserError(f"id_classes: class {class_name(names, number)} is named twice; once is enough.")
    return chosen


def _class_number(given: int | str, names: Sequence[str], set_name: str) -> int:
    if isinstance(given, str):
        if names.count(given) > 1:
            numbers = [str(number) for number, name in enumerate(names) if name == given]
            raise UserError(f"id_classes: {given!r} is the name of classes {' and '.join(numbers)}; give the number.")
        if given in names:
            return names.index(given)
        if not given.strip().isdecimal():
            hint = suggest(given, names)
            few = f" It has {len(names)} classes: {few_names(names)}."
            raise UserError(f"id_classes: {set_name} has no class {given!r}.{hint if len(hint) < 400 else few}")
    number = int(given)
    if not 0 <= number < len(names):
        raise UserError(f"id_classes: {set_name} has no class {number}; its classes are 0 to {len(names) - 1}.")
    return number


def few_names(names: Sequence[str]) -> str:
    """A list of names that stays short."""
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:4])}, ..., {names[-1]}"


def class_name(names: Sequence[str], number: int) -> str:
    """A class's number and, where it has one, its name."""
    return f"{number} ({names[number]})" if number < len(names) and names[number] != str(number) else str(number)


@dataclass(frozen=True)
class Group:
    """The images of one class, or those without a class, in the order in which they are drawn."""

    name: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def held_back(spec: SplitSpec, groups: Sequence[Group]) -> int:
    """How many images of each class are held back from the unlabeled ones, if every class has as many."""
    smallest = min(groups, key=len)
    labels, val, available = spec.labels_per_class, spec.val_per_class, len(smallest)
    only = "1 image" if available == 1 else f"{available} images"
    if labels > available:
        beside = f" beside {val} validation images (val_per_class)" if val else ""
        raise UserError(
            f"labels_per_class: {labels} labels per class asked for, but {smallest.name} has only {only} "
            f"for training; the largest that fits{beside} is {max(available - val, 0)}."
        )
    if labels + val > available:
        raise UserError(
            f"val_per_class: {labels} labeled and {val} validation images per class asked for, but {smallest.name} "
            f"has only {only}; with {labels} labels the largest val_per_class that fits is "
            f"{available - labels}."
        )
    return labels + val


def unlabeled_counts(
    spec: SplitSpec, rest: Sequence[Group], ood: Sequence[Group], set_name: str, source: str | None
) -> tuple[list[int], list[int]]:
    """Unlabeled images of each ID class and of each OOD class."""
    id_counts, ood_counts = [len(group) for group in rest], [len(group) for group in ood]
    total, everything = spec.unlabeled, sum(id_counts) + sum(ood_counts)
    if not sum(ood_counts) and (spec.ood_ratio or spec.ood_count):
        asked = f"ood_ratio: {spec.ood_ratio}" if spec.ood_ratio else f"ood_count: {spec.ood_count}"
        all_id = f"all {len(rest)} classes of {set_name} are ID"
        none = all_id if source is None else f"the OOD source {source} has no training images"
        raise UserError(
            f"{asked} asked for, but there are 0 OOD images: {none}. "
            "Name fewer id_classes, give an OOD source, or ask for an ood_ratio of 0."
        )
    if spec.ood_ratio is not None:
        id_counts, ood_counts = _counts_at_ratio(spec, rest, ood)
    elif spec.id_count is not None or spec.ood_count is not None:
        if spec.id_count is not None:
            id_counts = _exactly("id_count", spec.id_count, rest, _after(spec))
        if spec.ood_count is not None:
            ood_counts = _exactly("ood_count", spec.ood_count, ood)
            if total is not None:
                id_counts = [_beside_ood(spec, total, spec.ood_count, rest)] * len(rest)
    elif total is not None:
        if total > everything:
            raise UserError(
                f"unlabeled: {total} images asked for, but {everything} are left after the labeled and validation "
                f"images; the largest total that fits is {everything}."
            )
        counts = proportional_counts(total, id_counts + ood_counts)
        id_counts, ood_counts = counts[: len(rest)], counts[len(rest) :]
    if total and not sum(id_counts) + sum(ood_counts):
        raise UserError(
            f"unlabeled: {total} given, which is less than one image for each of {len(rest)} ID and {len(ood)} OOD "
            f"classes; ask for at least {len(rest) + len(ood)}, or 0 for none."
        )
    return id_counts, ood_counts


def _counts_at_ratio(spec: SplitSpec, rest: Sequence[Group], ood: Sequence[Group]) -> tuple[list[int], list[int]]:
    ratio = Fraction(str(spec.ood_ratio))  # as written: 20000 * (1 - 0.9) is 2000, and in floating point is not
    largest, kind = largest_at_ratio(ratio, list(map(len, rest)), list(map(len, ood)))
    total = largest if spec.unlabeled is None else spec.unlabeled
    id_count = math.floor(total * (1 - ratio) / len(rest))
    ood_count = math.floor(total * ratio / len(ood)) if ood else 0
    if total > largest:
        asked, groups, left = (id_count, rest, f" left{_after(spec)}") if kind == "ID" else (ood_count, ood, "")
        each = f"of each of the {len(groups)} {kind} classes" if len(groups) > 1 else f"{kind} images"
        limit = min(groups, key=len)
        raise UserError(
            f"unlabeled: {total} images at ood_ratio {spec.ood_ratio} need {max(asked, 1)} {each}, but {limit.name} "
            f"has {len(limit)}{left}; the largest total that fits at this ratio is {largest}."
        )
    return [id_count] * len(rest), [ood_count] * len(ood)


def largest_at_ratio(ratio: Fraction, rest: Sequence[int], ood: Sequence[int]) -> tuple[int, str]:
    """The largest total that fits such classes, and whose smallest class does not let it be larger.

    >>> largest_at_ratio(Fraction("0.5"), [10, 20], [100])
    (43, 'ID')
    """
    # An ID class's and an OOD class's part of the total, and the fewest images, which decide what fits.
    shares = [((1 - ratio) / len(rest), min(rest), "ID")]
    if ood:
        shares.append((ratio / len(ood), min(ood), "OOD"))
    # floor(total * share) <= n  <=>  total < (n + 1) / share; but a class with nothing left allows nothing at all
    return min((math.ceil((n + 1) / share) - 1 if n else 0, kind) for share, n, kind in shares if share)


def _beside_ood(spec: SplitSpec, total: int, ood_count: int, rest: Sequence[Group]) -> int:
    """Images of each ID class where the total and the number of OOD images are given."""
    if total < ood_count:
        raise UserError(f"unlabeled: {total} images in all asked for, of which {ood_count} OOD (ood_count).")
    id_count, smallest = (total - ood_count) // len(rest), min(rest, key=len)
    if id_count > len(smallest):
        raise UserError(
            f"unlabeled: {total} images with {ood_count} OOD need {id_count} of each of the {len(rest)} ID classes, "
            f"but {smallest.name} has {len(smallest)} left{_after(spec)}; the largest total that fits is "
            f"{ood_count + len(rest) * (len(smallest) + 1) - 1}."
        )
    return id_count


def _exactly(field: str, count: int, groups: Sequence[Group], after: str = "") -> list[int]:
    """This many images over the classes, as equally as their sizes allow."""
    available = sum(map(len, groups))
    if count > available:
        kind = "ID" if field == "id_count" else "OOD"
        raise UserError(
            f"{field}: {count} {kind} images asked for, but there are {available}{after}; "
            f"the largest that fits is {available}."
        )
    return even_counts(count, [len(group) for group in groups])


def _after(spec: SplitSpec) -> str:
    return f" after {spec.labels_per_class} labeled and {spec.val_per_class} validation images"


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
