"""Classes and counts are known before anything is decoded, and decide the defaults of a split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import osp.data
from osp.data.split import make_split, spec_for
from osp.errors import UserError


def write(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng((seed, count)).integers(0, 256, (count, 9, 9, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:03}.png")


def test_the_description_of_real_photos_agrees_with_what_is_loaded(real_data: Callable[..., Path]) -> None:
    root = real_data("photos") / "photos"
    described = osp.data.describe_set("folder", root)
    train, test = osp.data.load("folder", root)
    assert test is not None
    assert train.labels is not None
    assert test.labels is not None
    assert (described.class_names, described.shape) == (train.class_names, train.shape)
    assert described.train == tuple(np.bincount(train.labels).tolist())
    assert described.test == tuple(np.bincount(test.labels).tolist())
    assert (described.train_unknown, described.test_unknown) == (0, 0)


def test_a_folder_is_described_without_opening_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cat", 16)
    write(tmp_path / "dog", 11, 1)
    write(tmp_path, 4, 2)
    monkeypatch.setattr("osp.data.decode_pool.decode_all", None)
    described = osp.data.describe_set("folder", tmp_path, size=64)
    assert described.class_names == ("cat", "dog")
    assert (described.train, described.test) == ((13, 9), (3, 2))  # a fifth of each is set aside
    assert (described.train_unknown, described.test_unknown, described.shape) == (4, 0, (3, 64, 64))
    assert described.smallest_class == 9
    assert described.smallest_of(("cat",)) == described.smallest_of((0,)) == 13
    with pytest.raises(UserError, match="folder has no class 'cow'"):
        described.smallest_of(("cow",))
    pile = osp.data.describe_set("pile", tmp_path)
    assert (pile.train, pile.train_unknown, pile.test, pile.smallest_class) == ((), 31, None, None)


@pytest.mark.parametrize("per_class", [2, 3, 4, 5, 16, 40])
@pytest.mark.parametrize("pile", [False, True])
def test_defaults_fit_a_folder_with_few_images_per_class(tmp_path: Path, per_class: int, pile: bool) -> None:
    for seed, name in enumerate(("cat", "cow", "dog")):
        write(tmp_path / "sorted" / name, per_class, seed)
    write(tmp_path / "unsorted", 20, 9)
    ood = "pile" if pile else None
    described = osp.data.describe_set("folder", tmp_path / "sorted")
    spec = spec_for("folder", ood, seed=0, smallest_class=described.smallest_class, labels_per_class=None)
    sets = osp.data.load("folder", tmp_path / "sorted")
    split = make_split(spec, *sets, *(osp.data.load("pile", tmp_path / "unsorted") if pile else ()))
    assert len(split.labeled) == 3 * spec.labels_per_class
    assert len(split.val) == 3 * spec.val_per_class
    assert split.unlabeled_is_ood.sum() == (20 if pile else 0)
    assert (spec.labels_per_class, spec.val_per_class) == {
        2: (1, 0), 3: (1, 1), 4: (2, 1), 5: (2, 1), 16: (6, 3), 40: (10, 5)
    }[per_class]  # fmt: skip


def test_files_of_different_sizes_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(50):
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(b"x" * (number + 1))
    monkeypatch.setattr("osp.data.folders._digest", None)
    assert osp.data.describe_set("folder", tmp_path).train == (40,)
