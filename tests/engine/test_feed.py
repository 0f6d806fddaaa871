"""Images on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from osp.data.gather import Images
from osp.engine import feed
from osp.engine.feed import DeviceImages, on_device_if_it_fits


@pytest.fixture
def images() -> Images:
    draws = np.random.default_rng(0)
    grey = np.broadcast_to(draws.integers(0, 256, (5, 1, 8, 8), dtype=np.uint8), (5, 3, 8, 8))
    return Images([draws.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8), grey])


def test_images_on_the_device_are_the_images(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "COPY_CHUNK", 4)
    held = DeviceImages(images, torch.device("cpu"))
    asked = np.array([13, 0, 7, 7, 9])
    assert torch.equal(held.take(asked), images.take(asked))


def test_the_host_keeps_the_images_of_a_cpu_run(images: Images) -> None:
    assert on_device_if_it_fits(images, torch.device("cpu")) is images
