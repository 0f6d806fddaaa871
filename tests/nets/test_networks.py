"""Networks: sizes as published, any image, dropout and batch norm as semi-supervised methods need them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from osp import UserError
from osp.nets import (
    StepDropout,
    batchnorm_momentum,
    build_encoder,
    build_network,
    frozen_batchnorm_statistics,
    set_batchnorm_momentum,
)
from osp.nets.backbones import PreActivationBlock


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("classes", "count"), [(10, 1_467_610), (50, 1_472_770)])
def test_wrn_28_2_has_the_published_number_of_parameters(classes: int, count: int) -> None:
    network = build_network("wrn-28-2", (3, 32, 32), classes)
    assert parameters(network) == count
    assert network.feature_dim == 128


def test_the_two_layer_cnn_has_the_published_size() -> None:
    network = build_network("cnn", (1, 28, 28), 6)
    assert parameters(network) == 14_214
    assert network.feature_dim == 1568
    assert network.dropout.rate == 0.5


@pytest.mark.parametrize("name", ["cnn", "small", "wrn-10-1", "wrn-16-2"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", [(8, 8), (28, 28), (32, 32), (64, 64), (9, 13)])
def test_every_network_takes_every_image_and_knows_its_feature_size(
    name: str, channels: int, sides: tuple[int, int]
) -> None:
    network = build_network(name, (channels, *sides), 7)
    images = torch.randn(2, channels, *sides)
    features = network.encode(images)
    assert features.shape == (2, network.feature_dim)
    assert build_encoder(name, channels, *sides).feature_dim == network.feature_dim
    assert network.classify(features).shape == network(images).shape == (2, 7)


def test_images_below_8x8_and_unknown_networks_are_refused() -> None:
    with pytest.raises(UserError, match="at least 8x8"):
        build_network("cnn", (1, 7, 8), 3)
    with pytest.raises(UserError, match=r"Unknown network 'smal'\. Did you mean 'small'\?"):
        build_network("smal", (1, 8, 8), 3)
    with pytest.raises(UserError, match="the depth must be 6n"):
        build_network("wrn-27-2", (1, 8, 8), 3)
    with pytest.raises(UserError, match="the width at least 1"):
        build_network("wrn-28-0", (1, 8, 8), 3)


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


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    dropout = StepDropout(0.3)
    dropout.set_step(0, 1)
    features = torch.ones(2000, 500)
    dropped = dropout(features)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=2e-3)  # five standard deviations
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert dropped.mean().item() == pytest.approx(1.0, abs=3e-3)


def test_dropout_depends_on_seed_and_step_alone() -> None:
    dropout = StepDropout(0.5)
    features = torch.ones(4, 64)

    def at(seed: int, step: int) -> Tensor:
        dropout.set_step(seed, step)
        return torch.stack([dropout(features), dropout(features)])

    torch.manual_seed(1)
    first = at(0, 3)
    torch.manual_seed(2)
    assert torch.equal(first, at(0, 3))
    assert not torch.equal(first[0], first[1])  # two passes of one step differ
    assert not torch.equal(first, at(0, 4))
    assert not torch.equal(first, at(1, 3))


def test_dropout_of_each_process_is_its_slice_of_the_global_mask() -> None:
    whole, part = StepDropout(0.5), StepDropout(0.5)
    features = torch.ones(12, 32)
    whole.set_step(5, 9)
    expected = whole(features)
    for rank in range(3):
        part.set_step(5, 9, rank, 3)
        assert torch.equal(part(features[rank::3]), expected[rank::3])


def test_dropout_does_nothing_in_evaluation_or_at_rate_0() -> None:
    features = torch.randn(3, 5)
    assert StepDropout(0.9).eval()(features) is features
    assert StepDropout(0.0).train()(features) is features


def test_features_are_taken_before_the_dropout() -> None:
    network = build_network("cnn", (1, 8, 8), 3).train()
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(network.encode(images), network.encode(images))
    assert not torch.equal(network(images), network(images))


def test_frozen_statistics_normalise_by_the_batch_and_stay_as_they_were() -> None:
    norm = nn.BatchNorm2d(3, momentum=0.2).train()
    images = torch.randn(8, 3, 4, 4) * 3 + 1
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    with frozen_batchnorm_statistics(norm):
        normalised = norm(images)
    assert torch.equal(norm.running_mean, before)
    torch.testing.assert_close(normalised.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert norm.momentum == 0.2
    norm(images)
    torch.testing.assert_close(norm.running_mean, 0.2 * images.mean(dim=(0, 2, 3)))


def test_frozen_statistics_are_let_go_after_an_error() -> None:
    norm = nn.BatchNorm1d(2, momentum=None)
    with pytest.raises(ZeroDivisionError), frozen_batchnorm_statistics(norm):
        _ = 1 / 0
    assert norm.momentum is None


def test_short_runs_let_statistics_follow_faster() -> None:
    for steps in (100, 2_000, 20_000, 250_000):
        momentum = batchnorm_momentum(steps)
        assert 0.001 <= momentum <= 0.1
        if steps <= 50_000 and momentum < 0.1:
            assert (1 - momentum) ** (steps / 10) < 0.01  # the initial values after a tenth of the run
    network = build_network("small", (3, 8, 8), 3)
    set_batchnorm_momentum(network, 0.07)
    assert {layer.momentum for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)} == {0.07}


def test_running_statistics_are_right_after_a_short_run_of_the_engine() -> None:
    """With the field's 0.001 they would still be near (0, 1) after 60 steps."""
    norm = nn.BatchNorm2d(1)
    set_batchnorm_momentum(norm, batchnorm_momentum(60))
    rng = np.random.default_rng(0)
    for _ in range(60):
        norm(torch.from_numpy(rng.normal(5.0, 2.0, (16, 1, 4, 4)).astype(np.float32)))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.running_mean.item() == pytest.approx(5.0, rel=0.05)
    assert norm.running_var.item() == pytest.approx(4.0, rel=0.1)


def test_a_module_of_ones_own_is_probed_without_changing_it() -> None:
    encoder = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 64, 11)).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    network = build_network(encoder, (3, 8, 8), 5)
    assert network.feature_dim == 11
    assert network.encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    with pytest.raises(UserError, match="does not accept images"):
        build_network(encoder, (1, 8, 8), 5)


@pytest.mark.parametrize(("images", "group"), [(10, 4), (12, 4), (7, 3), (5, 5), (9, 1)])
def test_several_passes_give_each_image_its_own_features(images: int, group: int) -> None:
    torch.manual_seed(0)
    net = build_network("cnn", (1, 8, 8), 3).train()
    batch = torch.randn(images, 1, 8, 8)
    whole = net.encode(batch)
    net.group = group
    torch.testing.assert_close(net.encode(batch), whole)


def test_a_pass_holds_every_nth_image_and_no_more_than_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_network("cnn", (1, 8, 8), 3).train()
    seen: list[list[float]] = []
    encoder = net.encoder.forward

    def spy(images: torch.Tensor) -> torch.Tensor:
        seen.append(images[:, 0, 0, 0].tolist())
        found: torch.Tensor = encoder(images)
        return found

    monkeypatch.setattr(net.encoder, "forward", spy)
    net.group = 3
    batch = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 8, 8)
    net.encode(batch)
    assert seen == [[0, 3, 6], [1, 4, 7], [2, 5]]
    seen.clear()
    net.eval().encode(batch)
    assert len(seen) == 1  # nothing is kept for a backward pass: large batches are no trouble
