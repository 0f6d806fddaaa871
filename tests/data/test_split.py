"""Splits: the paper's counts, the properties every split has, and refusals that give the numbers."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osp.data.images import ImageSet
from osp.data.split import Split, SplitSpec, make_split, paper_split, spec_for
from osp.data.split_spec import even_counts, proportional_counts
from osp.errors import UserError

MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def image_set(
    counts: tuple[int, ...], unknown: int = 0, names: tuple[str, ...] | None = None, name: str = "toy"
) -> ImageSet:
    """Images of one pixel, `counts[c]` of class c and `unknown` of none, in mixed order."""
    labels = np.repeat(np.arange(-1, len(counts)), [unknown, *counts]).astype(np.int64)
    np.random.default_rng(0).shuffle(labels)
    names = names if names is not None else tuple(f"c{c}" for c in range(len(counts)))
    return ImageSet(name, np.zeros((len(labels), 1, 1, 1), np.uint8), labels, names, (0.5,), (0.5,))


def unclassed(size: int, name: str = "noise") -> ImageSet:
    return ImageSet(name, np.zeros((size, 1, 1, 1), np.uint8), None, (), (0.5,), (0.5,))


def spec(**changes: Any) -> SplitSpec:
    base: dict[str, Any] = {
        "id_classes": (0, 1, 2),
        "labels_per_class": 4,
        "unlabeled": None,
        "ood_ratio": None,
        "ood_count": None,
        "val_per_class": 3,
        "seed": 0,
    }
    return SplitSpec(**(base | changes))


def class_counts(images: ImageSet, rows: np.ndarray) -> list[int]:
    assert images.labels is not None
    return [int(n) for n in np.bincount(images.labels[rows], minlength=len(images.class_names))]


def same(a: Split, b: Split) -> bool:
    return all(np.array_equal(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(Split))


@pytest.mark.parametrize(
    ("data", "train", "test", "labels", "per_class"),
    [
        ("mnist", MNIST_TRAIN, MNIST_TEST, 10, {0.3: (3500, 2250), 0.6: (2000, 4500)}),
        ("cifar10", (5000,) * 10, (1000,) * 10, 400, {0.3: (2333, 1500), 0.6: (1333, 3000)}),
        ("cifar100", (500,) * 100, (100,) * 100, 100, {0.3: (280, 120), 0.6: (160, 240)}),
        ("tinyimagenet", (500,) * 200, (50,) * 200, 100, {0.3: (280, 120), 0.6: (160, 240)}),
    ],
)
@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_counts_of_the_papers_table_3(
    data: str,
    train: tuple[int, ...],
    test: tuple[int, ...],
    labels: int,
    per_class: dict[float, tuple[int, int]],
    ratio: float,
) -> None:
    train_set, test_set = image_set(train), image_set(test)
    split = make_split(spec_for(data, seed=1, ood_ratio=ratio), train_set, test_set)
    n_id, n_ood = per_class[ratio]
    id_classes = set(split.id_classes.tolist())
    expected = [n_id if c in id_classes else n_ood for c in range(len(train))]
    assert class_counts(train_set, split.unlabeled) == expected
    assert class_counts(train_set, split.labeled) == [labels if c in id_classes else 0 for c in range(len(train))]
    assert class_counts(train_set, split.val) == [50 if c in id_classes else 0 for c in range(len(train))]
    assert class_counts(test_set, split.test) == [n if c in id_classes else 0 for c, n in enumerate(test)]
    assert class_counts(test_set, split.test_ood) == [0 if c in id_classes else n for c, n in enumerate(test)]


def test_id_classes_of_the_paper() -> None:
    assert [CIFAR10_NAMES[c] for c in paper_split("cifar10")["id_classes"]] == [
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
    ]
    assert paper_split("mnist")["id_classes"] == (0, 1, 2, 3, 4, 5)
    assert paper_split("cifar100")["id_classes"] == tuple(range(50))
    assert paper_split("tinyimagenet")["id_classes"] == tuple(range(100))
    assert paper_split("digits")["id_classes"] == (0, 1, 2, 3, 4, 5)


def test_ratio_is_taken_as_written_not_as_its_float() -> None:
    train = image_set((3000,) * 2 + (20_000,))
    split = make_split(
        spec(id_classes=(0, 1), unlabeled=20_000, ood_ratio=0.9, labels_per_class=1, val_per_class=0), train, None
    )
    assert class_counts(train, split.unlabeled) == [1000, 1000, 18_000]  # int(20000 * (1 - 0.9)) would be 1999


def test_stl10_setting() -> None:
    train, test = image_set((500,) * 10, unknown=100_000), image_set((800,) * 10)
    assert train.labels is not None
    split = make_split(spec_for("stl10", seed=0), train, test)
    drawn = train.labels[split.unlabeled]
    assert np.bincount(drawn[drawn >= 0]).tolist() == [200] * 10
    assert (drawn < 0).sum() == 20_000
    assert np.array_equal(split.unlabeled_is_ood, drawn < 0)
    assert class_counts(train, split.labeled) == [100] * 10
    assert len(split.test) == 8000
    assert len(split.test_ood) == 0


@pytest.mark.parametrize("labels", [25, 100])
def test_cifar10_with_tiny_imagenet_as_ood(labels: int) -> None:
    train, test = image_set((5000,) * 10), image_set((1000,) * 10)
    ood_train, ood_test = image_set((500,) * 200), image_set((50,) * 200)
    split = make_split(
        spec_for("cifar10", "tinyimagenet", seed=0, labels_per_class=labels), train, test, ood_train, ood_test
    )
    assert class_counts(train, split.labeled) == [labels] * 10
    assert class_counts(train, split.val) == [500] * 10
    inside = split.unlabeled < 50_000
    assert np.array_equal(split.unlabeled_is_ood, ~inside)
    assert class_counts(train, split.unlabeled[inside]) == [5000 - 500 - labels] * 10
    assert class_counts(ood_train, split.unlabeled[~inside] - 50_000) == [50] * 200
    assert np.array_equal(split.test, np.arange(10_000))
    assert np.array_equal(split.test_ood, np.arange(10_000, 20_000))


def test_ood_source_without_classes_or_test_images() -> None:
    train, test = image_set((60,) * 3), image_set((5,) * 3)
    split = make_split(spec(ood_count=70), train, test, unclassed(100), None)
    assert split.unlabeled_is_ood.sum() == 70
    assert len(split.test_ood) == 0
    at_ratio = make_split(spec(unlabeled=99, ood_ratio=0.5), train, test, unclassed(100), unclassed(7))
    assert at_ratio.unlabeled_is_ood.sum() == 49  # floor(99 / 2)
    assert (~at_ratio.unlabeled_is_ood).sum() == 48  # 3 * floor(49.5 / 3)
    assert at_ratio.test_ood.tolist() == list(range(15, 22))


def test_with_a_source_the_other_classes_of_the_id_set_are_left_out() -> None:
    train, test = image_set((60,) * 5, unknown=9), image_set((5,) * 5, unknown=2)
    split = make_split(spec(), train, test, unclassed(100), unclassed(7))
    inside = split.unlabeled[split.unlabeled < len(train)]
    assert class_counts(train, inside) == [53, 53, 53, 0, 0]
    assert split.unlabeled_is_ood.sum() == 100
    assert class_counts(test, split.test) == [5, 5, 5, 0, 0]
    assert split.test_ood.tolist() == list(range(27, 34))


def test_test_images_without_a_class_are_nowhere() -> None:
    test = image_set((5,) * 5, unknown=4)
    assert test.labels is not None
    split = make_split(spec(), image_set((60,) * 5), test)
    assert set(test.labels[split.test]) == {0, 1, 2}
    assert set(test.labels[split.test_ood]) == {3, 4}


def test_targets_follow_the_order_in_which_the_classes_are_named() -> None:
    names = ("ant", "bee", "cow", "dog")
    train, test = image_set((30,) * 4, names=names), image_set((6,) * 4, names=names)
    assert train.labels is not None
    assert test.labels is not None
    split = make_split(spec(id_classes=("dog", 0, "2")), train, test)
    assert split.id_classes.tolist() == [3, 0, 2]
    assert np.array_equal(split.id_classes[split.labeled_targets], train.labels[split.labeled])
    assert np.array_equal(split.id_classes[split.val_targets], train.labels[split.val])
    assert np.array_equal(split.id_classes[split.test_targets], test.labels[split.test])


def test_neither_ratio_nor_total_takes_everything() -> None:
    train = image_set((20, 31, 12, 40, 5), unknown=6)
    split = make_split(spec(), train, None)
    everything = np.sort(np.concatenate([split.labeled, split.val, split.unlabeled]))
    assert np.array_equal(everything, np.arange(len(train)))
    assert split.unlabeled_is_ood.sum() == 40 + 5 + 6


def test_total_alone_keeps_the_natural_proportions() -> None:
    train = image_set((107, 207, 57, 300))
    split = make_split(spec(unlabeled=65), train, None)
    assert class_counts(train, split.unlabeled) == [10, 20, 5, 30]


def test_all_ood_and_no_ood_are_allowed() -> None:
    train = image_set((40,) * 5)
    assert make_split(spec(unlabeled=20, ood_ratio=1.0), train, None).unlabeled_is_ood.all()
    assert not make_split(spec(unlabeled=20, ood_ratio=0.0), train, None).unlabeled_is_ood.any()
    assert not make_split(
        spec(id_classes=None, unlabeled=20, ood_ratio=0.0), train, None
    ).unlabeled_is_ood.any()  # no OOD class, and none needed


def test_no_validation_and_no_unlabeled_images_are_allowed() -> None:
    split = make_split(spec(val_per_class=0, unlabeled=0, ood_ratio=0.5), image_set((40,) * 5), None)
    assert len(split.val) == len(split.unlabeled) == len(split.test) == len(split.test_ood) == 0
    assert split.unlabeled_is_ood.dtype == np.bool_


ratios = st.integers(0, 100).map(lambda percent: percent / 100)


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(8, 60), min_size=3, max_size=7),
    k=st.integers(2, 6),
    ratio=ratios,
    other=ratios,
    total=st.one_of(st.none(), st.integers(0, 300)),
    labels=st.integers(1, 5),
    val=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_every_split_is_disjoint_stratified_exact_and_stable_across_ratios(
    counts: list[int], k: int, ratio: float, other: float, total: int | None, labels: int, val: int, seed: int
) -> None:
    k = min(k, len(counts) - 1)
    train, test = image_set(tuple(counts)), image_set((3,) * len(counts))
    assert train.labels is not None
    wanted = SplitSpec(tuple(range(k)), labels, total, ratio, None, val, seed)
    n_ood_classes = len(counts) - k
    exact = Fraction(round(ratio * 100), 100)

    def parts(n: int) -> tuple[int, int]:
        return int(n * (1 - exact) / k), int(n * exact / n_ood_classes)

    def fits(n: int) -> bool:
        n_id, n_ood = parts(n)
        left = min(counts[:k]) - labels - val
        if n and not left and ratio < 1:  # a class with nothing left allows no total, whatever rounding says
            return False
        return n_id <= left and n_ood <= min(counts[k:])

    if total is None:
        limit = next(n for n in range(10_000) if not fits(n + 1))
    elif total and fits(total) and not any(parts(total)):
        with pytest.raises(UserError, match=f"{total} given, which is less than one image"):
            make_split(wanted, train, test)
        return
    elif not fits(total):
        with pytest.raises(UserError, match=rf"unlabeled: {total} images.*the largest total that fits") as refusal:
            make_split(wanted, train, test)
        found = re.search(r"is (\d+)\.$", str(refusal.value))
        assert found
        largest = int(found.group(1))
        assert fits(largest)
        assert not fits(largest + 1)
        return
    else:
        limit = total
    split = make_split(wanted, train, test)
    n_id, n_ood = parts(limit)
    every = np.concatenate([split.labeled, split.val, split.unlabeled])
    assert len(np.unique(every)) == len(every)
    assert class_counts(train, split.labeled) == [labels] * k + [0] * n_ood_classes
    assert class_counts(train, split.val) == [val] * k + [0] * n_ood_classes
    assert class_counts(train, split.unlabeled) == [n_id] * k + [n_ood] * n_ood_classes
    assert np.array_equal(split.unlabeled_is_ood, train.labels[split.unlabeled] >= k)
    assert same(split, make_split(wanted, train, test))

    again = make_split(dataclasses.replace(wanted, ood_ratio=other, unlabeled=None), train, test)
    assert np.array_equal(split.labeled, again.labeled)
    assert np.array_equal(split.val, again.val)
    for ood in (False, True):  # the images of one kind at one ratio hold those of the other, or lie within them
        a, b = (set(s.unlabeled[s.unlabeled_is_ood == ood].tolist()) for s in (split, again))
        assert a <= b or b <= a


def test_a_class_does_not_depend_on_the_other_classes() -> None:
    train = image_set((40,) * 5)
    assert train.labels is not None
    few = make_split(spec(id_classes=(0, 1)), train, None)
    more = make_split(spec(id_classes=(1, 4, 0)), train, None)
    for c in (0, 1):
        assert np.array_equal(
            few.labeled[train.labels[few.labeled] == c], more.labeled[train.labels[more.labeled] == c]
        )


def test_seeds_differ_and_a_seed_means_the_same_on_every_machine() -> None:
    train = image_set((40,) * 5)
    assert not same(make_split(spec(), train, None), make_split(spec(seed=1), train, None))
    # From the definition: the images of class 0 in the order of the raw Philox values of the key (0, "split", 0).
    from osp.randomness import key_to_seed

    assert train.labels is not None
    order = np.argsort(np.random.Philox(key_to_seed(0, "split", 0)).random_raw(40), kind="stable")
    expected = np.flatnonzero(train.labels == 0)[order]
    split = make_split(spec(), train, None)
    assert set(split.labeled[split.labeled_targets == 0]) == set(expected[:4])
    assert set(split.val[split.val_targets == 0]) == set(expected[4:7])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"labels_per_class": 41},
            [
                "labels_per_class: 41",
                "class 1 (bee) has only 20 images",
                "fits beside 3 validation images (val_per_class) is 17",
            ],
        ),
        ({"labels_per_class": 18, "val_per_class": 9}, ["val_per_class: 18", "9", "class 1 (bee)", "20", "is 2."]),
        ({"labels_per_class": 0}, ["labels_per_class: 0", "at least 1"]),
        ({"val_per_class": -1}, ["val_per_class: -1", "negative"]),
        ({"unlabeled": -5}, ["unlabeled: -5", "negative"]),
        ({"ood_count": -2}, ["ood_count: -2", "negative"]),
        ({"ood_ratio": 1.2}, ["ood_ratio: 1.2", "between 0 and 1"]),
        ({"ood_ratio": -0.1}, ["ood_ratio: -0.1"]),
        ({"ood_ratio": float("nan")}, ["ood_ratio: nan"]),
        ({"ood_ratio": float("inf")}, ["ood_ratio: inf"]),
        ({"ood_ratio": 0.5, "ood_count": 3}, ["0.5", "3", "give one"]),
        ({"id_classes": None, "ood_ratio": 0.5}, ["ood_ratio: 0.5", "all 5 classes of toy are ID", "0 OOD images"]),
        ({"id_classes": None, "ood_count": 3}, ["ood_count: 3", "0 OOD images"]),
        ({"id_classes": ("ant", "beee")}, ["toy has no class 'beee'", "Did you mean 'bee'?"]),
        ({"id_classes": (0, 5)}, ["no class 5", "0 to 4"]),
        ({"id_classes": (0, -1)}, ["no class -1", "0 to 4"]),
        ({"id_classes": (0, 1, "ant")}, ["class 0 (ant) is named twice"]),
        ({"id_classes": (0,)}, ["id_classes: 1 given", "at least 2"]),
        ({"id_classes": ()}, ["id_classes: 0 given", "at least 2"]),
        ({"unlabeled": 200}, ["200 images", "189 are left", "fits is 189"]),  # 210 - 3 * (4 + 3)
        ({"ood_count": 91}, ["ood_count: 91", "there are 90", "largest that fits is 90"]),
        ({"ood_count": 50, "unlabeled": 40}, ["40 images", "50 OOD"]),
        # 13 of bee are left; 39 fit, and 40 and 41 round down to it.
        ({"ood_count": 50, "unlabeled": 92}, ["92 images", "14 of each of the 3 ID", "bee) has 13 left", "is 91."]),
        ({"ood_ratio": 0.0, "unlabeled": 42}, ["42 images", "14 of each of the 3", "bee) has 13 left", "is 41."]),
        ({"ood_ratio": 1.0, "unlabeled": 90}, ["45 of each of the 2 OOD", "class 3 (dog) has 40", "is 81."]),
        ({"ood_ratio": 0.0, "unlabeled": 2}, ["2 given", "less than one image"]),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(changes: dict[str, Any], words: list[str]) -> None:
    train = image_set((50, 20, 50, 40, 50), names=("ant", "bee", "cow", "dog", "elk"))
    with pytest.raises(UserError) as refusal:
        make_split(spec(**changes), train, None)
    for word in words:
        assert word in str(refusal.value)


def test_a_source_with_too_few_images_is_refused_with_the_numbers() -> None:
    with pytest.raises(UserError, match="10000 OOD images asked for, but there are 900; the largest that fits is 900"):
        make_split(spec_for("cifar10", "lsun", seed=0), image_set((5000,) * 10), None, unclassed(900, "lsun"))
    with pytest.raises(UserError, match="OOD source lsun has no training images"):
        make_split(spec(ood_ratio=0.5), image_set((50,) * 5), None, unclassed(0, "lsun"))


def test_sets_without_classes_or_with_other_test_classes_are_refused() -> None:
    with pytest.raises(UserError, match="noise have no classes"):
        make_split(spec(), unclassed(50), None)
    with pytest.raises(UserError, match="same classes"):
        make_split(spec(), image_set((50,) * 3), image_set((5,) * 3, names=("x", "y", "z")))


def test_two_classes_of_one_name_need_their_number() -> None:
    train = image_set((50,) * 4, names=("a", "crane", "crane", "b"))
    with pytest.raises(UserError, match="'crane' is the name of classes 1 and 2; give the number"):
        make_split(spec(id_classes=("a", "crane")), train, None)
    assert make_split(spec(id_classes=("a", 2)), train, None).id_classes.tolist() == [0, 2]


def test_save_and_load_give_the_same_split_under_the_agreed_names(tmp_path: Path) -> None:
    split = make_split(spec(), image_set((40,) * 5), image_set((4,) * 5))
    split.save(tmp_path / "split.npz")
    assert same(split, Split.load(tmp_path / "split.npz"))
    with np.load(tmp_path / "split.npz", allow_pickle=False) as stored:
        assert set(stored.files) == {
            "labeled",
            "unlabeled",
            "val",
            "test",
            "test_ood",
            "unlabeled_is_ood",
            "id_classes",
            "labeled_targets",
            "val_targets",
            "test_targets",
        }
        assert {stored[name].dtype for name in stored.files} == {np.dtype(np.int64), np.dtype(np.bool_)}
    assert [path.name for path in tmp_path.iterdir()] == ["split.npz"]


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "split.npz"
    first = make_split(spec(), image_set((40,) * 5), None)
    first.save(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space"):
        make_split(spec(seed=1), image_set((40,) * 5), None).save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["split.npz"]
    assert same(first, Split.load(path))


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_a_broken_split_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "split.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"split\.npz is not a split file"):
        Split.load(path)
    with pytest.raises(UserError, match="no such split file"):
        Split.load(tmp_path / "absent.npz")


def test_a_file_with_other_arrays_is_no_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", labeled=np.arange(3))
    with pytest.raises(UserError, match="should hold the arrays labeled, unlabeled"):
        Split.load(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.arange(3))
    with pytest.raises(UserError, match="not a split file"):
        Split.load(tmp_path / "b.npy")


@given(total=st.integers(0, 200), available=st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_even_counts_are_as_equal_as_the_sizes_allow(total: int, available: list[int]) -> None:
    counts = even_counts(total, available)
    assert sum(counts) == min(total, sum(available))
    for count, size in zip(counts, available, strict=True):
        assert count == size or count >= max(counts) - 1


@given(share=st.fractions(0, 1), available=st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_proportional_counts_are_within_one_of_the_proportion(share: Fraction, available: list[int]) -> None:
    total = int(share * sum(available))
    counts = proportional_counts(total, available)
    assert sum(counts) == total
    for count, size in zip(counts, available, strict=True):
        assert count <= size
        assert total == 0 or abs(count - Fraction(total * size, sum(available))) < 1


def test_what_the_user_sets_replaces_the_defaults_that_depend_on_it() -> None:
    assert spec_for("mnist", seed=3) == SplitSpec(tuple(range(6)), 10, 30_000, 0.6, None, 50, 3)
    assert spec_for("mnist", seed=3, ood_ratio=0.0).ood_ratio == 0.0
    stl = spec_for("stl10", seed=0, ood_ratio=0.5)
    assert (stl.ood_ratio, stl.ood_count, stl.unlabeled) == (0.5, None, None)
    counted = spec_for("mnist", seed=0, ood_count=100)
    assert (counted.ood_ratio, counted.ood_count, counted.unlabeled) == (None, 100, None)
    assert spec_for("mnist", "gaussian", seed=0) == SplitSpec(None, 10, None, None, None, 50, 0)


@pytest.mark.parametrize("smallest", [1, 2, 3, 7, 12, 500])
def test_defaults_for_a_folder_fit_its_smallest_class(smallest: int) -> None:
    wanted = spec_for("my-photos", seed=0, smallest_class=smallest)
    train = image_set((smallest, smallest + 4, 60))
    split = make_split(wanted, train, None)
    assert len(split.labeled) == 3 * wanted.labels_per_class
    if smallest == 500:
        assert (wanted.labels_per_class, wanted.val_per_class) == (10, 5)


def test_a_number_of_id_images_is_kept_whatever_the_ood_images() -> None:
    train = image_set((40, 31, 12, 90, 9), unknown=6)
    few, many = (make_split(spec(id_count=20, ood_count=n), train, None) for n in (10, 100))
    for split, ood in ((few, 10), (many, 100)):
        assert split.unlabeled_is_ood.sum() == ood
        assert class_counts(train, split.unlabeled[~split.unlabeled_is_ood]) == [8, 7, 5, 0, 0]  # class 2 has 5 left
    np.testing.assert_array_equal(
        few.unlabeled[~few.unlabeled_is_ood], many.unlabeled[~many.unlabeled_is_ood]
    )  # more OOD images change nothing else
    assert set(few.unlabeled) <= set(many.unlabeled)
    alone = make_split(spec(id_count=21), train, None)  # without a number of OOD images: all of them
    assert (alone.unlabeled_is_ood.sum(), (~alone.unlabeled_is_ood).sum()) == (105, 21)
    assert same(make_split(spec(id_count=20, unlabeled=30), train, None), few)
    assert same(make_split(spec(id_count=20, unlabeled=30, ood_count=10), train, None), few)
    nothing = make_split(spec(id_count=0, ood_count=3), train, None)
    assert nothing.unlabeled_is_ood.tolist() == [True] * 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id_count": -1}, ["id_count: -1", "negative"]),
        ({"id_count": 200}, ["id_count: 200 ID images", "there are 129 after 4 labeled and 3", "fits is 129"]),
        ({"id_count": 5, "ood_count": 99}, ["ood_count: 99", "80"]),
        ({"id_count": 5, "ood_ratio": 0.5}, ["id_count 5 and ood_ratio 0.5", "with ood_count"]),
        ({"id_count": 5, "ood_count": 5, "unlabeled": 11}, ["unlabeled: 11", "make 10", "their sum"]),
        ({"id_count": 5, "unlabeled": 3}, ["unlabeled: 3", "make 5"]),
    ],
)
def test_a_number_of_id_images_that_does_not_fit_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        make_split(spec(**changes), image_set((50, 50, 50, 40, 40)), None)
    for word in words:
        assert word in str(refusal.value)


def test_a_number_of_id_images_replaces_the_papers_ratio_and_total() -> None:
    counted = spec_for("mnist", seed=0, id_count=500, ood_count=100)
    assert (counted.id_count, counted.ood_count, counted.ood_ratio, counted.unlabeled) == (500, 100, None, None)


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        (
            "labeled",
            lambda split: split.unlabeled[: len(split.labeled)],
            "12 images are both in labeled and in unlabeled",
        ),
        ("val", lambda split: split.labeled[: len(split.val)], "9 images are both in labeled and in val"),
        ("test_ood", lambda split: split.test[:2], "2 images are both in test and in test_ood"),
        (
            "labeled_targets",
            lambda split: split.labeled_targets + 50,
            "labeled_targets has 5., but there are 3",
        ),
        ("test_targets", lambda split: split.test_targets - 1, "test_targets has -1"),
        ("id_classes", lambda split: -1 - split.id_classes, "id_classes has the negative number -3"),
        ("id_classes", lambda split: split.id_classes * 0, "id_classes has a number twice"),
        ("unlabeled", lambda split: split.unlabeled - 1000, "unlabeled has the negative number"),
        ("test", lambda split: split.test * 0 + 1, "test has a number twice"),
        ("test", lambda split: split.test[1:], "differ in length"),
        ("val", lambda split: split.val[:, None], "differ in length"),
    ],
)
def test_a_split_file_that_contradicts_itself_is_refused(tmp_path: Path, field: str, change: Any, words: str) -> None:
    split = make_split(spec(), image_set((40,) * 5), image_set((4,) * 5))
    dataclasses.replace(split, **{field: change(split)}).save(tmp_path / "split.npz")
    with pytest.raises(UserError, match=rf"split\.npz is not a split file: .*{words}"):
        Split.load(tmp_path / "split.npz")


def test_a_split_is_checked_against_the_images() -> None:
    train, test, ood, ood_test = image_set((40,) * 5), image_set((4,) * 5), unclassed(30), unclassed(6)
    inside, across = make_split(spec(), train, test), make_split(spec(), train, test, ood, ood_test)
    inside.check(train, test)
    across.check(train, test, ood, ood_test)
    with pytest.raises(UserError, match=r"unlabeled has row 229, but there are 200"):
        across.check(train, test)
    with pytest.raises(UserError, match="test_ood has row 25, but there are 20"):
        across.check(train, test, ood, None)
    with pytest.raises(UserError, match="but there are 150"):
        inside.check(image_set((30,) * 5), test)
    with pytest.raises(UserError, match="test has images without a class"):
        inside.check(train, unclassed(20))
    assert train.labels is not None
    turned = dataclasses.replace(train, labels=(train.labels + 1) % 5)
    with pytest.raises(UserError, match="labeled has images of other classes than it says"):
        inside.check(turned, test)
    truth = ~inside.unlabeled_is_ood
    with pytest.raises(UserError, match="unlabeled_is_ood says otherwise"):
        dataclasses.replace(inside, unlabeled_is_ood=truth).check(train, test)
