"""Views made from pixels: uint8 images by index, augmented in batches on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from osp.data.gather import Images
from osp.data.view_source import Draw, to_device
from osp.data.views import Augmenter

COPY_CHUNK = 4096
DEVICE_SHARE = 0.4
"""Of the free memory of a CUDA device that images may take up."""


class PixelViews:
    """The views of images (`ViewSource`).

    `channels_last` gives them in that memory format, for a network that is laid out so too.
    """

    def __init__(
        self, images: Images, augmenter: Augmenter, device: torch.device, *, channels_last: bool = False
    ) -> None:
        self.images = on_device_if_it_fits(images, device)
        self.shape: tuple[int, ...] = images.shape
        self.shards = images.shards
        self.augmenter, self.device = augmenter, device
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def check(self, view: str) -> None:
        self.augmenter.view(view)

    def views(self, index: np.ndarray, names: Sequence[str], draw: Draw) -> dict[str, Tensor]:
        images = to_device(self.images.take(index), self.device)
        made = {}
        for name in names:
            plan = self.augmenter.plan(name, draw.batch, draw.generator(name))[draw.mine]
            made[name] = self.augmenter.apply(images, plan).contiguous(memory_format=self.memory_format)
        return made

    def plain(self, index: np.ndarray) -> Tensor:
        images = to_device(self.images.take(index), self.device)
        return self.augmenter.normalize(images).contiguous(memory_format=self.memory_format)


class DeviceImages:
    """The same images, held on the device: batches are then gathered there, and nothing is copied during the run."""

    def __init__(self, images: Images, device: torch.device) -> None:
        self._all = torch.empty((len(images), *images.shape), dtype=torch.uint8, device=device)
        for first in range(0, len(images), COPY_CHUNK):
            rows = np.arange(first, min(first + COPY_CHUNK, len(images)))
            self._all[first : first + len(rows)] = images.take(rows).to(device)

    def take(self, indices: np.ndarray) -> Tensor:
        """The images at these indices, in this order."""
        index = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return self._all[to_device(index, self._all.device)]


def on_device_if_it_fits(images: Images, device: torch.device) -> Images | DeviceImages:
    """The images on the device where they fit, so that no step waits for a copy; else on the host."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    return DeviceImages(images, device) if len(images) * int(np.prod(images.shape)) < DEVICE_SHARE * free else images
