"""What is asked of a split: the user's fields, the paper's settings, and what suits any other set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from osp.data.registry import available, get
from osp.data.source import SplitDefaults
from osp.errors import UserError


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
    id_count: int | None = None
    """Number of unlabelled ID images, in place of a total; None = what `unlabeled` leaves, or all there are."""


def paper_split(data: str, ood_data: str | None = None) -> dict[str, Any]:
    """The fields of SplitSpec but for the seed: the paper's where it has the set, else what suits any folder.

    Table 3 (intra-dataset) and the inter-dataset settings of the paper; 50 validation images per class as in its code.
    Each set's file holds them.

    >>> paper_split("mnist")["unlabeled"], paper_split("cifar10", "lsun")["ood_count"]
    (30000, 10000)
    """
    found = get(data) if data in available() else None
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
    if smallest_class is not None and not (data in available() and get(data).within):
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
