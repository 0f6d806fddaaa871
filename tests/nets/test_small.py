"""The small network: its size as documented."""

from __future__ import annotations

import torch

from osp.nets import build_network


def test_it_has_the_documented_size_and_halves_the_image_three_times() -> None:
    network = build_network("small", (3, 32, 32), 100)
    assert sum(each.numel() for each in network.parameters()) == 494_340
    assert network.feature_dim == 128
    _, maps = network.encode_with_maps(torch.zeros(2, 3, 32, 32))
    assert maps.shape == (2, 128, 4, 4)
