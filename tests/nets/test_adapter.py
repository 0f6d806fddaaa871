"""The adapter: the identity at first, its formula ever after."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from osp import UserError
from osp.nets import build_network
from osp.nets.adapter import Adapter


@pytest.mark.parametrize("size", [3, 1280])
def test_features_pass_through_unchanged_at_the_start(size: int) -> None:
    network = build_network("adapter", (size,), 4)
    features = torch.randn(7, size)
    assert network.feature_dim == size
    assert torch.equal(network.encode(features), features)
    assert torch.equal(network(features), network.classifier(features))


def test_it_follows_its_formula() -> None:
    torch.manual_seed(0)
    adapter = Adapter((40,))
    nn.init.normal_(adapter.up.weight)
    nn.init.normal_(adapter.down.bias)
    first, bias, second = (
        each.detach().double() for each in (adapter.down.weight, adapter.down.bias, adapter.up.weight)
    )
    for z in torch.randn(5, 40):
        expected = z.double() + second @ torch.clamp(first @ z.double() + bias, min=0)
        torch.testing.assert_close(adapter(z[None])[0].double(), expected, atol=1e-4, rtol=1e-4)


def test_it_learns_what_a_linear_classifier_cannot() -> None:
    """The class is whether two coordinates agree in sign (XOR): half of it is chance, and all that a line can find."""
    for seed in range(3):
        torch.manual_seed(seed)
        features = torch.randn(400, 8)
        targets = (features[:, 0] * features[:, 1] > 0).long()

        def accuracy(network: nn.Module, features: torch.Tensor = features, targets: torch.Tensor = targets) -> float:
            optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
            for _ in range(100):
                optimizer.zero_grad()
                F.cross_entropy(network(features), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            return float((network(features).argmax(dim=1) == targets).float().mean())

        assert accuracy(build_network("adapter", (8,), 2)) > 0.85  # 0.98 or more
        assert accuracy(nn.Linear(8, 2)) < 0.7  # about 0.55


def test_networks_for_images_and_for_features_refuse_each_others_inputs() -> None:
    with pytest.raises(UserError, match="adapter takes stored features, but these are images"):
        build_network("adapter", (3, 32, 32), 4)
    with pytest.raises(UserError, match="cnn takes images, but these are features of 1280 numbers"):
        build_network("cnn", (1280,), 4)


def test_a_module_of_ones_own_may_take_features() -> None:
    network = build_network(nn.Linear(12, 5), (12,), 3)
    assert network.feature_dim == 5
    assert network.cam_layer() is None
    with pytest.raises(UserError, match="does not accept features of shape"):
        build_network(nn.Linear(12, 5), (11,), 3)
    with pytest.raises(UserError, match="no layer of maps"):
        network.encode_with_maps(torch.zeros(2, 12))
