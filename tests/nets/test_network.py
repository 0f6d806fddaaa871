"""Encoder and classifier: dropout and batch norm as semi-supervised methods need them, passes, maps for Grad-CAM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from osp import UserError
from osp.nets import (
    StepDropout,
    batchnorm_momentum,
    build_network,
    frozen_batchnorm_statistics,
    set_batchnorm_momentum,
)


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


def test_frozen_statistics_normalize_by_the_batch_and_stay_as_they_were() -> None:
    norm = nn.BatchNorm2d(3, momentum=0.2).train()
    images = torch.randn(8, 3, 4, 4) * 3 + 1
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    with frozen_batchnorm_statistics(norm):
        normalized = norm(images)
    assert torch.equal(norm.running_mean, before)
    torch.testing.assert_close(normalized.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
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


@pytest.mark.parametrize("name", ["cnn", "small", "wrn-10-1"])
def test_grad_cam_sees_the_maps_that_the_features_are_made_of(name: str) -> None:
    """The gradient of a logit at the maps, times a small change of the maps, is the change of the logit."""
    torch.manual_seed(0)
    network = build_network(name, (3, 32, 32), 5).eval()
    images = torch.randn(2, 3, 32, 32)
    features, maps = network.encode_with_maps(images)
    assert torch.equal(features, network.encode(images))
    assert maps.ndim == 4
    assert min(maps.shape[2:]) >= 4
    logit = network.classify(features)[0, 1]
    (gradient,) = torch.autograd.grad(logit, maps)
    assert gradient[0].abs().sum() > 0
    assert not gradient[1].any()  # the other image has no part in it
    layer = network.cam_layer()
    assert layer is not None
    change = 1e-3 * gradient.sign()
    handle = layer.register_forward_hook(lambda _module, _inputs, output: output + change)
    moved = network(images)[0, 1]
    handle.remove()
    assert (moved - logit).item() == pytest.approx((gradient * change).sum().item(), rel=0.05)


def test_grad_cam_of_a_module_of_ones_own_looks_at_its_last_convolution() -> None:
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Conv2d(2, 4, 3), nn.Flatten())
    network = build_network(encoder, (1, 8, 8), 3)
    assert network.cam_layer() is encoder[2]
    assert network.encode_with_maps(torch.zeros(2, 1, 8, 8))[1].shape == (2, 4, 4, 4)
