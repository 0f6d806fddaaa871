"""Views from stored features: drawn among the stored ones, never the same twice, a function of (seed, step)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from osp import UserError
from osp.data.feature_views import FeatureViews
from osp.data.view_source import Draw

CPU = torch.device("cpu")
NAMES = ("plain", "flip", "weak", "weak2", "strong", "strong2")
ROWS, SIZE = 40, 3


def stored(dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Image i of view v is (i, v, -1): what is drawn tells where it comes from."""
    return {
        name: np.stack([np.arange(ROWS), np.full(ROWS, number), np.full(ROWS, -1)], axis=1).astype(dtype)
        for number, name in enumerate(NAMES)
    }


@pytest.fixture
def source() -> FeatureViews:
    return FeatureViews(stored(), CPU)


def drawn(source: FeatureViews, views: tuple[str, ...], step: int = 0, seed: int = 0) -> dict[str, list[str]]:
    """The stored view that each image's row came from."""
    made = source.views(np.arange(ROWS), views, Draw(seed, step, "unlabeled", ROWS))
    assert all(torch.equal(values[:, 0], torch.arange(ROWS).float()) for values in made.values())
    return {view: [NAMES[int(number)] for number in values[:, 1]] for view, values in made.items()}


def test_weak_and_weak2_are_never_the_same_stored_view(source: FeatureViews) -> None:
    seen = {"weak": 0, "weak2": 0}
    for step in range(25):
        found = drawn(source, ("weak", "weak2", "strong2", "strong"), step)
        for first, second in zip(found["weak"], found["weak2"], strict=True):
            assert {first, second} == {"weak", "weak2"}
            seen[first] += 1
        for first, second in zip(found["strong"], found["strong2"], strict=True):
            assert {first, second} == {"strong", "strong2"}
    assert abs(seen["weak"] - 500) < 5 * 250**0.5  # of 1,000 tosses


def test_flip_is_the_plain_or_the_mirrored_image_with_equal_chance(source: FeatureViews) -> None:
    found = [name for step in range(25) for name in drawn(source, ("flip",), step)["flip"]]
    assert set(found) == {"plain", "flip"}
    assert abs(found.count("flip") - 500) < 5 * 250**0.5


def test_plain_is_always_the_plain_view(source: FeatureViews) -> None:
    assert set(drawn(source, ("plain",))["plain"]) == {"plain"}
    index = np.array([7, 7, 0])
    assert source.plain(index)[:, :2].tolist() == [[7, 0], [7, 0], [0, 0]]
    assert source.plain(np.empty(0, np.int64)).shape == (0, SIZE)


def test_a_draw_depends_on_seed_step_and_stream_alone(source: FeatureViews) -> None:
    first = drawn(source, ("weak", "strong"), 4)
    torch.manual_seed(7)
    assert drawn(source, ("strong", "weak2", "weak"), 4)["weak"] == first["weak"]  # whatever else is asked for
    assert drawn(source, ("weak",), 5)["weak"] != first["weak"]
    assert drawn(source, ("weak",), 4, seed=1)["weak"] != first["weak"]
    other = source.views(np.arange(ROWS), ("weak",), Draw(0, 4, "labeled", ROWS))["weak"]
    assert [NAMES[int(number)] for number in other[:, 1]] != first["weak"]


@pytest.mark.parametrize("world", [2, 4])
def test_each_process_gets_its_rows_of_the_global_batch(source: FeatureViews, world: int) -> None:
    index = np.random.default_rng(0).integers(0, ROWS, 16)
    whole = source.views(index, ("weak", "strong"), Draw(0, 3, "s", 16))
    for rank in range(world):
        part = source.views(index[rank::world], ("weak", "strong"), Draw(0, 3, "s", 16, rank, world))
        assert all(torch.equal(part[view], whole[view][rank::world]) for view in whole)


def test_half_precision_and_memory_maps_give_single_precision_in_memory(tmp_path: Path) -> None:
    for name, array in stored(np.float16).items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in NAMES}
    source = FeatureViews(mapped, CPU)
    assert source.shape == (SIZE,)
    made = source.views(np.arange(ROWS), ("weak", "flip"), Draw(0, 0, "s", ROWS))
    assert {values.dtype for values in (*made.values(), source.plain(np.arange(3)))} == {torch.float32}
    expected = FeatureViews(stored(), CPU).views(np.arange(ROWS), ("weak", "flip"), Draw(0, 0, "s", ROWS))
    assert all(torch.equal(made[view], expected[view]) for view in made)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("stong", "'stong' are not stored.*Did you mean 'strong'"),
        ("weak3", "'weak3' asks for 3 different draws, but features are stored for 2: weak, weak2"),
        ("plain2", "stored for 1: plain"),
        ("weak1", "'weak1' are not stored"),  # would be the same as `weak`
        ("", "not stored"),
    ],
)
def test_a_view_that_is_not_stored_is_told(source: FeatureViews, view: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        source.check(view)


def test_features_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(UserError, match="lack the view 'plain'; there are: weak"):
        FeatureViews({"weak": np.zeros((2, 3), np.float32)}, CPU)
    for wrong in (
        np.zeros((2, 4), np.float32),
        np.zeros((3, 3), np.float32),
        np.zeros((2, 3)),
        np.zeros(2, np.float32),
    ):
        with pytest.raises(UserError, match="view 'weak' are"):
            FeatureViews({"plain": np.zeros((2, 3), np.float32), "weak": wrong}, CPU)
