"""Wide residual networks: sizes as published, blocks by their formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from osp import UserError
from osp.nets import build_encoder, build_network, check_name
from osp.nets.wrn import PreActivationBlock, parameters


@pytest.mark.parametrize(("classes", "count"), [(10, 1_467_610), (50, 1_472_770)])
def test_wrn_28_2_has_the_published_number_of_parameters(classes: int, count: int) -> None:
    network = build_network("wrn-28-2", (3, 32, 32), classes)
    assert sum(each.numel() for each in network.parameters()) == count
    assert network.feature_dim == 128


@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-16-4", "wrn-22-2", "wrn-28-2"])
def test_the_estimate_of_parameters_is_within_5_percent_of_the_built_network(name: str) -> None:
    built = sum(each.numel() for each in build_encoder(name, (3, 8, 8)).parameters())
    _, depth, width = name.split("-")
    assert 0.95 * built < parameters(int(depth), int(width)) < built


@pytest.mark.parametrize("name", ["wrn-28-400", "wrn-6000004-1", "wrn-999999994-999999999"])
def test_numbers_that_would_fill_the_memory_are_refused_without_building(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} would have .* million parameters; the limit is 500 million"):
        check_name(name)
    with pytest.raises(UserError, match="million parameters"):
        build_network(name, (3, 32, 32), 10)


def test_depths_and_widths_that_make_no_network_are_refused() -> None:
    with pytest.raises(UserError, match="the depth must be 6n"):
        check_name("wrn-27-2")
    with pytest.raises(UserError, match="the width at least 1"):
        check_name("wrn-28-0")


@pytest.mark.parametrize(("first", "inputs"), [(True, 4), (False, 4), (False, 8)])
def test_a_block_follows_its_formula(first: bool, inputs: int) -> None:
    """y = conv2(act(bn2(conv1(act(bn1(x)))))) + shortcut, which starts activated only in the very first block."""
    torch.manual_seed(0)
    block = PreActivationBlock(inputs, 8, stride=2 if inputs != 8 and not first else 1, activate_shortcut=first).eval()
    images = torch.randn(2, inputs, 6, 6)

    def activated(norm: nn.Module, maps: Tensor) -> Tensor:
        return nn.functional.leaky_relu(norm(maps), 0.1)

    with torch.no_grad():
        start = activated(block.bn1, images)
        expected = block.conv2(activated(block.bn2, block.conv1(start)))
        residual = start if first else images
        expected += residual if block.shortcut is None else block.shortcut(residual)
        torch.testing.assert_close(block(images.clone()), expected)
