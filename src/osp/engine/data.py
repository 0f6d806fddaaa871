"""Opening what a recipe names: the images, the split, the views."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import load
from osp.data.gather import Images, match
from osp.data.imageset import ImageSet
from osp.data.split import Split, SplitSpec, make_split
from osp.errors import UserError
from osp.recipe import Recipe


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
    """Which unlabelled images are OOD, for metrics only; None where nobody knows, as in a pile of unsorted images."""
    fingerprints: dict[str, str]
    """What a split's row numbers refer to: changes when images come, go or change places."""
    sets: tuple[ImageSet, ImageSet | None, ImageSet | None, ImageSet | None] | None = None
    """Training and test images, those of the OOD source: what a stored split is checked against."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.train.shape


def open_data(recipe: Recipe, split: Split | None = None, progress: Any = None) -> Data:
    """Load the sets of a resolved recipe and cut them, or take the split of an earlier start of the same run."""
    check_folders(recipe)
    train, test = load(recipe.data, recipe.data_dir, size=recipe.image_size, seed=recipe.seed, progress=progress)
    ood_train: ImageSet | None = None
    ood_test: ImageSet | None = None
    if recipe.ood_data is not None:
        side = train.shape[1]
        ood_root = recipe.ood_dir or recipe.data_dir
        ood_train, ood_test = load(recipe.ood_data, ood_root, size=side, seed=recipe.seed, progress=progress)
    warn_of_loose_images(recipe, train)
    if test is None:
        raise UserError(f"{recipe.data} has no test images to report on; it can only serve as --ood-data.")
    if split is None:
        split = make_split(split_spec(recipe), train, test, ood_train, ood_test)
    sets = [each for each in (train, test, ood_train, ood_test) if each is not None]
    named = {each.name: each.variant for each in sets if each.variant}
    return Data(
        train=_join(train, ood_train),
        test=_join(test, ood_test),
        split=split,
        source=train,
        class_names=tuple(train.class_names[c] for c in split.id_classes),
        variant="; ".join(f"{name}: {variant}" for name, variant in named.items()) or None,
        skipped=sum(len(each.skipped) for each in sets),
        truth=None if unsorted_images(recipe, train, split) else split.unlabeled_is_ood,
        fingerprints={f"{number} {each.name}": each.content_key for number, each in enumerate(sets)},
        sets=(train, test, ood_train, ood_test),
    )


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


def unsorted_images(recipe: Recipe, train: ImageSet, split: Split) -> bool:
    """Whether the pool has images of which nobody said whether they are ID: a pile, or loose ones beside classes."""
    if recipe.ood_data is not None:
        return recipe.ood_data == "pile"
    return train.labels is not None and bool((train.labels[split.unlabeled] < 0).any())


def warn_of_loose_images(recipe: Recipe, train: ImageSet) -> None:
    """Say how many images without a class stay unused because the pool's other images come from elsewhere."""
    loose = 0 if train.labels is None or recipe.ood_data is None else int((train.labels < 0).sum())
    if loose:
        warnings.warn(
            f"{loose} images of {recipe.data} lie in no class's folder and are left out, because --ood-data names "
            "where other images come from.",
            stacklevel=2,
        )


def check_folders(recipe: Recipe) -> None:
    """Refuse a folder of the user's that would be its own OOD source, or of which it is not said what it holds."""
    if recipe.ood_dir is not None and recipe.ood_data is None:
        raise UserError(
            f"--ood-dir {recipe.ood_dir}: say what is in it: --ood-data pile (unsorted images), or folder (classes)."
        )
    if recipe.ood_data == "pile" and recipe.ood_ratio is not None:
        raise UserError(
            f"--ood-ratio {recipe.ood_ratio:g}: nobody knows which share of a pile is OOD. Leave it out, and all "
            "its images are used; --set ood_count=N takes N of them."
        )
    own = {"folder", "pile"}
    if recipe.ood_data in own and (
        recipe.ood_dir is None or (recipe.data in own and recipe.ood_dir == recipe.data_dir)
    ):
        raise UserError(f"--ood-data {recipe.ood_data}: name the folder of those images with --ood-dir.")


def split_spec(recipe: Recipe) -> SplitSpec:
    """The split a resolved recipe asks for."""
    assert recipe.labels_per_class is not None
    return SplitSpec(
        id_classes=recipe.id_classes,
        labels_per_class=recipe.labels_per_class,
        unlabeled=recipe.unlabeled,
        ood_ratio=recipe.ood_ratio,
        ood_count=recipe.ood_count,
        val_per_class=recipe.val_per_class or 0,
        seed=recipe.seed,
    )


def _join(images: ImageSet, others: ImageSet | None) -> Images:
    parts: list[np.ndarray] = [images.images]
    if others is not None:
        parts.append(match(others.images, images.shape))
    return Images(parts)
