"""The two-layer CNN: its size as published."""

from __future__ import annotations

from osp.nets import build_network


def test_the_two_layer_cnn_has_the_published_size() -> None:
    network = build_network("cnn", (1, 28, 28), 6)
    assert sum(each.numel() for each in network.parameters()) == 14_214
    assert network.feature_dim == 1568
    assert network.dropout.rate == 0.5
