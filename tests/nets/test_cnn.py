"""The two-layer CNN: its size as published."""

from __future__ import annotations

import torch

from osp.nets import build_network


def test_the_two_layer_cnn_has_the_published_size() -> None:
    network = build_network("cnn", (1, 28, 28), 6)
    assert sum(each.numel() for each in network.parameters()) == 14_214
    assert network.feature_dim == 1568
    assert network.dropout.rate == 0.5


def test_grad_cam_looks_at_its_rectified_maps_which_are_the_features() -> None:
    """Maps with negative places would leave Grad-CAM of z·o, o >= 0, blank nearly everywhere."""
    network = build_network("cnn", (1, 28, 28), 6)
    features, maps = network.encode_with_maps(torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    assert maps.shape == (3, 32, 7, 7)
    assert torch.equal(maps.flatten(1), features)
    assert maps.min() == 0
