"""Views by number: the same as augmenting by hand from pixels, drawn among the stored ones from features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from osp import UserError
from osp.data import view_source
from osp.data.images import Images
from osp.data.view_source import DeviceImages, Draw, FeatureViews, PixelViews, on_device_if_it_fits
from osp.data.views import Augmenter
from osp.randomness import generator

CPU = torch.device("cpu")


@pytest.fixture
def images() -> Images:
    draws = np.random.default_rng(0)
    grey = np.broadcast_to(draws.integers(0, 256, (5, 1, 8, 8), dtype=np.uint8), (5, 3, 8, 8))
    return Images([draws.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8), grey])


@pytest.fixture
def augmenter() -> Augmenter:
    return Augmenter((3, 8, 8), [0.4, 0.5, 0.6], [0.2, 0.3, 0.25])


def test_each_view_is_drawn_from_seed_step_stream_and_name(images: Images, augmenter: Augmenter) -> None:
    source = PixelViews(images, augmenter, CPU)
    index = np.array([13, 0, 7, 7, 9, 2])
    made = source.views(index, ("weak", "weak2", "strong", "plain"), Draw(3, 11, "unlabeled", 6))
    assert list(made) == ["weak", "weak2", "strong", "plain"]
    for view, given in made.items():
        plan = augmenter.plan(view.rstrip("2"), 6, generator(3, 11, "unlabeled", view))
        assert torch.equal(given, augmenter.apply(images.take(index), plan))
    assert not torch.equal(made["weak"], made["weak2"])
    assert torch.equal(made["plain"], source.plain(index))
    assert source.shape == (3, 8, 8)


@pytest.mark.parametrize("world", [2, 3])
def test_each_process_gets_its_rows_of_the_global_batch(images: Images, augmenter: Augmenter, world: int) -> None:
    source = PixelViews(images, augmenter, CPU)
    index = np.arange(12)
    whole = source.views(index, ("weak", "strong"), Draw(0, 5, "labeled", 12))
    for rank in range(world):
        part = source.views(index[rank::world], ("weak", "strong"), Draw(0, 5, "labeled", 12, rank, world))
        assert all(torch.equal(part[view], whole[view][rank::world]) for view in whole)


def test_the_memory_format_changes_the_layout_alone(images: Images, augmenter: Augmenter) -> None:
    usual, last = (PixelViews(images, augmenter, CPU, channels_last=on) for on in (False, True))
    index, draw = np.arange(14), Draw(0, 0, "s", 14)
    for one, other in (
        (usual.plain(index), last.plain(index)),
        *zip(*(source.views(index, ("weak",), draw).values() for source in (usual, last)), strict=True),
    ):
        assert torch.equal(one, other)
        assert one.is_contiguous()
        assert other.is_contiguous(memory_format=torch.channels_last)


def test_a_misspelled_view_is_told(images: Images, augmenter: Augmenter) -> None:
    source = PixelViews(images, augmenter, CPU)
    source.check("strong2")
    with pytest.raises(UserError, match="Did you mean 'strong'"):
        source.check("stong")


def test_images_on_the_device_are_the_images(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_source, "COPY_CHUNK", 4)
    held = DeviceImages(images, CPU)
    asked = np.array([13, 0, 7, 7, 9])
    assert torch.equal(held.take(asked), images.take(asked))


def test_the_host_keeps_the_images_of_a_cpu_run(images: Images) -> None:
    assert on_device_if_it_fits(images, CPU) is images


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
def test_each_process_gets_the_stored_rows_of_the_global_batch(source: FeatureViews, world: int) -> None:
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
