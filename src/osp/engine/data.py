"""Opening what a plan names: the images, the split, the views."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osp.data import available, get, known, load
from osp.data.images import Images, ImageSet, match
from osp.data.split import Split, SplitSpec, make_split
from osp.data.split_spec import largest_at_ratio
from osp.data.view_source import PixelViews
from osp.data.views import Augmenter
from osp.errors import UserError
from osp.evaluate.predictions import Group, PoolPredictions, Predictions
from osp.nets import check_name
from osp.recipe import Plan
from osp.recipe.plan import CUSTOM, SPLIT_FIELDS
from osp.runs.run import Run


@dataclass(frozen=True)
class Data:
    """Everything a run needs of its images."""

    train: Images
    """The ID set's training images, followed by the OOD source's where that is another set."""
    test: Images
    split: Split
    source: ImageSet
    class_names: tuple[str, ...]
    variant: str | None
    skipped: int
    truth: np.ndarray | None
    """Which unlabeled images are OOD, for metrics only; None where that is not known, as in a pile."""
    keys: dict[str, str]
    """Content keys of the sets: what a split's row numbers refer to."""
    other_ood: dict[str, Images] = field(default_factory=dict)
    """Sets that only the trained model sees, all of them OOD."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.train.shape


def open_data(
    plan: Plan, split: Split | None = None, progress: Any = None, keys: Mapping[str, str] | None = None
) -> Data:
    """Load the sets of a plan and cut them, or take the split of an earlier start of the same run.

    `keys` are the content keys of the images of that start: others now are refused.
    """
    train, test, ood_train, ood_test = load_sets(plan, progress)
    loose = 0 if train.labels is None or plan.ood_data is None else int((train.labels < 0).sum())
    if loose:
        warnings.warn(
            f"{loose} images of {plan.data} lie in no class's folder and are left out, because ood_data names "
            "where other images come from.",
            stacklevel=2,
        )
    if test is None and get(plan.data).own_folder and not get(plan.data).unsorted:
        raise UserError(
            f"{plan.data} has too few images for a fifth of a class to be put aside as test images. Give each class at "
            "least 5 images, or put the classes into a folder train, and test images of theirs into a folder test."
        )
    if test is None:
        raise UserError(f"{plan.data} has no test images to report on; it can only serve as ood_data.")
    if test.shape != train.shape:
        sizes = " and ".join(f"{width}x{height}" for _, height, width in (train.shape, test.shape))
        raise UserError(f"{plan.data}: training and test images differ in size ({sizes}). Set image_size.")
    sets = [each for each in (train, test, ood_train, ood_test) if each is not None]
    found = keys_of(sets)
    if keys is not None and keys != found:
        raise UserError(
            "The images have changed since the run began: some came, went, changed places or changed their pixels. Put "
            "them back, or start a new run in another folder."
        )
    if split is None:
        fields = {key: getattr(plan, key) for key in SPLIT_FIELDS}
        split = make_split(SplitSpec(**fields, seed=plan.seed), train, test, ood_train, ood_test)
    else:
        split.check(train, test, ood_train, ood_test)
    if plan.ood_data is not None:
        unsorted = get(plan.ood_data).unsorted
    else:  # loose images beside the classes
        unsorted = train.labels is not None and bool((train.labels[split.unlabeled] < 0).any())
    named = {each.name: each.variant for each in sets if each.variant}
    return Data(
        train=_join(train, ood_train),
        test=_join(test, ood_test),
        split=split,
        source=train,
        class_names=tuple(train.class_names[c] for c in split.id_classes),
        variant="; ".join(f"{name}: {variant}" for name, variant in named.items()) or None,
        skipped=sum(len(each.skipped) for each in sets),
        truth=None if unsorted else split.unlabeled_is_ood,
        keys=found,
        other_ood={name: other_images(name, plan, train, progress) for name in plan.test_ood},
    )


def normalization(plan: Plan, data: Data) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the pixels: the network's own, where it has them, else the data set's."""
    spec = None if plan.network == CUSTOM else check_name(plan.network)
    if spec is not None and spec.mean is not None and spec.std is not None:
        return spec.mean, spec.std
    return data.source.mean, data.source.std


def pixel_views(images: Images, data: Data, plan: Plan, device: torch.device) -> PixelViews:
    """The views of these images, as the set's kind allows and the network wants them."""
    mean, std = normalization(plan, data)
    instead = {view: str(plan.options.get(view, view)) for view in ("weak", "strong")}
    allowed = data.source
    augmenter = Augmenter(data.shape, mean, std, mirror=allowed.mirror, cutout=allowed.cutout, instead=instead)
    return PixelViews(images, augmenter, device, channels_last=plan.channels_last)


data_sets, known_set = available, known
"""For rooms that open data through the engine alone."""


def load_sets(
    plan: Plan, progress: Any = None, fetch: bool = True
) -> tuple[ImageSet, ImageSet | None, ImageSet | None, ImageSet | None]:
    """Training and test images of the set, and of the OOD source where that is another one."""
    how = {"seed": plan.seed, "progress": progress, "named": False, "fetch": fetch}
    train, test = load(plan.data, plan.data_dir, size=plan.image_size, **how)
    if plan.ood_data is None:
        return train, test, None, None
    return train, test, *load(plan.ood_data, plan.ood_dir or plan.data_dir, size=train.shape[1], **how)


def content_keys(plan: Plan) -> dict[str, str]:
    """What `data.json` of a run of this plan would say; UserError where its images are not here: none is fetched."""
    return keys_of([each for each in load_sets(plan, fetch=False) if each is not None])


def largest_pool(plan: Plan) -> int | None:
    """The largest total at the plan's ratio by the published sizes of its classes; None where those do not limit it."""
    sizes, labels = get(plan.data).class_sizes, plan.id_classes
    numbers = range(len(sizes)) if labels is None else labels
    if not sizes or plan.ood_ratio is None or plan.ood_data is not None or any(isinstance(c, str) for c in numbers):
        return None
    held = plan.labels_per_class + plan.val_per_class
    rest = [max(0, size - held) for number, size in enumerate(sizes) if number in numbers]
    ood = [size for number, size in enumerate(sizes) if number not in numbers]
    return largest_at_ratio(Fraction(str(plan.ood_ratio)), rest, ood)[0]


def keys_of(sets: Sequence[ImageSet]) -> dict[str, str]:
    return {f"{number} {each.name}": each.content_key for number, each in enumerate(sets)}


def other_images(name: str, plan: Plan, like: ImageSet, progress: Any = None) -> Images:
    """Test images of another set (all images of one that has no test set), in the size and colors of this one."""
    pool, test = load(name, plan.data_dir, size=like.shape[1], seed=plan.seed, progress=progress, named=False)
    return Images([match((pool if test is None else test).images, like.shape)])


def random_data(shape: tuple[int, int, int], classes: int, pool: int, folder: Path, labels_per_class: int = 10) -> Data:
    """Images of noise with a memory-mapped pool, for measuring speed: nothing can be learned from them.

    The pool's file is sparse beyond its first images: a million of them take up next to no disk.
    """
    draws = np.random.default_rng(0)
    known = draws.integers(0, 256, (2 * classes * labels_per_class, *shape), dtype=np.uint8)
    mapped = np.lib.format.open_memmap(folder / f"pool-{pool}.npy", mode="w+", dtype=np.uint8, shape=(pool, *shape))
    mapped[:4096] = draws.integers(0, 256, (min(pool, 4096), *shape), dtype=np.uint8)
    mapped.flush()
    targets = np.repeat(np.arange(classes), labels_per_class)
    count, nothing = len(targets), np.empty(0, np.int64)
    split = Split(
        labeled=np.arange(count),
        unlabeled=np.arange(2 * count, 2 * count + pool),
        val=np.arange(count, 2 * count),
        test=nothing,
        test_ood=nothing,
        unlabeled_is_ood=np.zeros(pool, bool),
        id_classes=np.arange(classes),
        labeled_targets=targets,
        val_targets=targets,
        test_targets=nothing,
    )
    names = tuple(f"class {number}" for number in range(classes))
    half = (0.5,) * shape[0]
    source = ImageSet("noise", known, None, names, mean=half, std=half)
    mapped = np.load(folder / f"pool-{pool}.npy", mmap_mode="r")
    return Data(Images([known, mapped]), Images(known), split, source, names, None, 0, None, {})


def _join(images: ImageSet, others: ImageSet | None) -> Images:
    parts: list[np.ndarray] = [images.images]
    if others is not None:
        parts.append(match(others.images, images.shape))
    return Images(parts)


def open_again(run: Run) -> Data:
    """The images of a run, to look at them; UserError where they are gone or are others now."""
    if run.data is not None:
        return run.data  # type: ignore[no-any-return]
    data = open_data(run.plan.changed(test_ood=()), Split.load(run.folder.split))  # nothing shows other OOD sets
    if run.folder.read_data() not in (None, data.keys):
        raise UserError(f"The images have changed since the run in {run.path} began.")
    if run.predictions is not None and (problem := other_rows(run.predictions, data.split)):
        raise UserError(f"{run.folder.predictions} is not of this run: {problem}.")
    return data


def other_rows(predictions: Predictions, split: Split) -> str:
    """What of the predictions is of other images than those of the split; nothing where all are of these."""
    groups: dict[str, Group | PoolPredictions] = {**predictions.groups, "pool": predictions.pool}
    parts = {"test": split.test, "test_ood": split.test_ood, "validation": split.val, "pool": split.unlabeled}
    for name, rows in parts.items():
        ids = groups[name].ids if name in groups else rows[:0]
        if not np.array_equal(ids, rows):
            return f"its {len(ids):,} images of {name} are not the {len(rows):,} of the split"
    return ""
