"""A backbone that takes no time: the mean colour of each of 4x4 tiles of 32x32 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

from osp.nets.pretrained import Backbone


def small_backbone(checksum: str = "tiles") -> Backbone:
    network = nn.Sequential(nn.AvgPool2d(8), nn.Conv2d(3, 3, 1, bias=False), nn.Flatten())
    weight = network[1].weight
    assert isinstance(weight, nn.Parameter)
    weight.data.zero_()
    for channel in range(3):
        weight.data[channel, channel] = 1.0
    frozen = network.eval().requires_grad_(False)
    return Backbone("tiles", checksum, frozen, 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 48, "none", cam_layer="1")


def write_photo(path: Path, seed: int, size: int = 40) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path
