"""The fast network: its size as documented, and a first layer that whitens natural images without learning."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import nn

from osp.nets import build_network
from osp.nets.fast import FastNet, cosine_filters


def test_it_has_the_documented_size_and_halves_the_image_three_times() -> None:
    network = build_network("fast", (3, 32, 32), 100)
    assert sum(each.numel() for each in network.parameters()) == 443_228
    assert network.feature_dim == 128
    _, maps = network.encode_with_maps(torch.zeros(2, 3, 32, 32))
    assert maps.shape == (2, 128, 4, 4)


def test_a_filter_is_the_product_of_two_cosines_and_a_mixture_of_channels() -> None:
    found = cosine_filters(3)[16 + 1]  # the second frequency of red - blue: u = 0, v = 1
    waves = [math.cos(math.pi * (j + 0.5) / 4) for j in range(4)]
    scale = math.sqrt(2) * 2 * math.sqrt(sum(wave**2 for wave in waves))  # of the channels, the constant and the wave
    for channel, sign in enumerate((1, 0, -1)):
        for i in range(4):
            for j in range(4):
                assert found[channel, i, j].item() == pytest.approx(sign * waves[j] / scale, abs=1e-6)


def test_grey_images_have_the_filters_of_brightness_alone() -> None:
    assert cosine_filters(1).shape == (16, 1, 4, 4)


def test_the_first_layer_does_not_learn_and_its_batch_norm_whitens_a_photograph() -> None:
    photo = torch.from_numpy(load_sample_image("flower.jpg")).permute(2, 0, 1).float() / 255
    patches = photo.unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).flatten(0, 1)
    patches = (patches - patches.mean(dim=(0, 2, 3), keepdim=True)) / patches.std(dim=(0, 2, 3), keepdim=True)
    encoder = FastNet((3, 32, 32))
    assert not any("filters" in name for name, _ in encoder.named_parameters())

    def off_diagonal(maps: torch.Tensor) -> float:
        """Mean size of the correlations between channels."""
        values = torch.corrcoef(maps.transpose(0, 1).flatten(1))
        return values[~torch.eye(len(values), dtype=torch.bool)].abs().mean().item()

    frequencies = nn.functional.conv2d(patches, encoder.filters, stride=2, padding=1)
    norm = encoder.layers[0]
    assert isinstance(norm, nn.BatchNorm2d)
    white = norm(frequencies)
    assert white.std(dim=(0, 2, 3)).sub(1).abs().max() < 0.01
    raw = nn.functional.unfold(patches, 4, stride=2).transpose(0, 1)[:, :, :, None]  # pixels of the same patches
    assert off_diagonal(white) < 0.3 * off_diagonal(raw.transpose(0, 1))
