"""How many unlabelled images each class gives, or a refusal with the numbers: asked, available, largest that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from osp.data.split_spec import SplitSpec
from osp.errors import UserError


@dataclass(frozen=True)
class Group:
    """The images of one class, or those without a class, in the order in which they are drawn."""

    name: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def held_back(spec: SplitSpec, groups: Sequence[Group]) -> int:
    """How many images of each class are held back from the unlabelled ones, if every class has as many."""
    smallest = min(groups, key=len)
    labels, val, available = spec.labels_per_class, spec.val_per_class, len(smallest)
    if labels > available:
        beside = f" beside {val} validation images (val_per_class)" if val else ""
        raise UserError(
            f"labels_per_class: {labels} labels per class asked for, but {smallest.name} has only {_images(available)} "
            f"for training; the largest that fits{beside} is {max(available - val, 0)}."
        )
    if labels + val > available:
        raise UserError(
            f"val_per_class: {labels} labelled and {val} validation images per class asked for, but {smallest.name} "
            f"has only {_images(available)}; with {labels} labels the largest val_per_class that fits is "
            f"{available - labels}."
        )
    return labels + val


def unlabeled_counts(
    spec: SplitSpec, rest: Sequence[Group], ood: Sequence[Group], set_name: str, source: str | None
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
    if spec.id_count is not None:
        id_counts = _exactly("id_count", spec.id_count, rest, _after(spec))
        ood_counts = [len(group) for group in ood]
        if spec.ood_count is not None:
            ood_counts = _exactly("ood_count", spec.ood_count, ood)
    elif spec.ood_ratio is not None:
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


def _counts_at_ratio(spec: SplitSpec, rest: Sequence[Group], ood: Sequence[Group]) -> tuple[list[int], list[int]]:
    ratio = Fraction(str(spec.ood_ratio))  # as written: 20000 * (1 - 0.9) is 2000, and in floating point is not
    largest, limit = largest_at_ratio(ratio, rest, ood)
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


Countable = TypeVar("Countable", Group, range)


def largest_at_ratio(ratio: Fraction, rest: Sequence[Countable], ood: Sequence[Countable]) -> tuple[int, Countable]:
    """The largest total that fits, and which class does not let it be larger.

    >>> largest_at_ratio(Fraction("0.5"), [range(10), range(20)], [range(100)])
    (43, range(0, 10))
    """
    # An ID class's and an OOD class's part of the total; the group with the fewest images decides what fits.
    shares = [((1 - ratio) / len(rest), min(rest, key=len))]
    if ood:
        shares.append((ratio / len(ood), min(ood, key=len)))
    shares = [(share, group) for share, group in shares if share]
    # floor(total * share) <= n  <=>  total < (n + 1) / share; but a class with nothing left allows nothing at all
    fits = [(math.ceil((len(group) + 1) / share) - 1 if len(group) else 0, group) for share, group in shares]
    return min(fits, key=lambda fit: fit[0])


def _counts_with_ood_count(
    spec: SplitSpec, ood_count: int, rest: Sequence[Group], ood: Sequence[Group]
) -> tuple[list[int], list[int]]:
    total = spec.unlabeled
    ood_counts = _exactly("ood_count", ood_count, ood)
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
