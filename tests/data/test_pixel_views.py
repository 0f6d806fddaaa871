"""Views from pixels: the same as augmenting by hand, on any number of processes, from images on the host or held."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from osp import UserError
from osp.data import pixel_views
from osp.data.gather import Images
from osp.data.pixel_views import DeviceImages, PixelViews, on_device_if_it_fits
from osp.data.view_source import Draw
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


def test_a_misspelt_view_is_told(images: Images, augmenter: Augmenter) -> None:
    source = PixelViews(images, augmenter, CPU)
    source.check("strong2")
    with pytest.raises(UserError, match="Did you mean 'strong'"):
        source.check("stong")


def test_images_on_the_device_are_the_images(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_views, "COPY_CHUNK", 4)
    held = DeviceImages(images, CPU)
    asked = np.array([13, 0, 7, 7, 9])
    assert torch.equal(held.take(asked), images.take(asked))


def test_the_host_keeps_the_images_of_a_cpu_run(images: Images) -> None:
    assert on_device_if_it_fits(images, CPU) is images
