"""Optimisers, averaged weights, running sums and gradients over processes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from osp.engine import records
from osp.engine.optim import (
    AveragedWeights,
    build_optimizer,
    clip_gradients,
    load_optimizer_tensors,
    main_parameters,
    optimizer_tensors,
)
from osp.engine.records import Tally
from osp.methods import ExtraOptimizer, Method, Options, Stage, Task
from osp.nets import build_network


def decayed(optimizer: torch.optim.Optimizer) -> dict[int, float]:
    return {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}


def test_weight_decay_leaves_biases_and_batch_norms_alone() -> None:
    net = build_network("wrn-10-1", (3, 8, 8), 4)
    decays = decayed(build_optimizer(Stage(weight_decay=0.01), net.parameters()))
    assert {decays[id(p)] for p in net.parameters() if p.ndim > 1} == {0.01}
    assert {decays[id(p)] for p in net.parameters() if p.ndim <= 1} == {0.0}
    assert len(decays) == len(list(net.parameters()))


def test_decay_all_reaches_every_parameter() -> None:
    net = build_network("cnn", (1, 8, 8), 4)
    assert set(decayed(build_optimizer(Stage(weight_decay=0.01, decay_all=True), net.parameters())).values()) == {0.01}


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        (Stage(optimizer="sgd"), torch.optim.SGD),
        (Stage(optimizer="adam"), torch.optim.Adam),
        (Stage(optimizer="adamw"), torch.optim.AdamW),
    ],
)
def test_the_stage_names_its_optimiser(stage: Stage, kind: type[torch.optim.Optimizer]) -> None:
    assert type(build_optimizer(stage, [nn.Parameter(torch.ones(2, 2))])) is kind


def test_nesterov_sgd_with_decay_follows_its_formula() -> None:
    parameter = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    optimizer = build_optimizer(Stage(lr=0.1, momentum=0.9, weight_decay=0.5), [parameter])
    value, velocity = parameter.detach().clone(), torch.zeros(1, 2)
    for gradient in (torch.tensor([[0.3, 0.1]]), torch.tensor([[-0.2, 0.4]]), torch.tensor([[0.5, 0.0]])):
        parameter.grad = gradient.clone()
        optimizer.step()
        full = gradient + 0.5 * value
        velocity = 0.9 * velocity + full
        value = value - 0.1 * (full + 0.9 * velocity)
        torch.testing.assert_close(parameter.detach(), value)


def test_a_parameter_whose_gradients_begin_later_rests_until_then_and_then_starts_without_momentum() -> None:
    """As SSB's detector does. Torch's fused step alone refuses that."""
    early, late = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = build_optimizer(Stage(lr=0.1, weight_decay=0.5), [early, late])
    early.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(late, torch.ones(2, 2))
    early.grad, late.grad = torch.ones(2, 2), torch.ones(2, 2)
    optimizer.step()
    torch.testing.assert_close(late.detach(), torch.full((2, 2), 1 - 0.1 * 1.9 * 1.5))


def test_parameters_that_need_no_gradient_are_left_out() -> None:
    frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    optimizer = build_optimizer(Stage(), [frozen, nn.Parameter(torch.ones(2))])
    assert id(frozen) not in decayed(optimizer)


class WithExtra(Method):
    name = "with-extra"

    def __init__(self) -> None:
        super().__init__(Options.model_validate({}), build_network("cnn", (1, 8, 8), 3), Task(3, (1, 8, 8), 6, 6, 0))
        self.extra = nn.Linear(2, 2)

    def extra_optimizers(self) -> dict[str, ExtraOptimizer]:
        return {"extra": ExtraOptimizer(self.extra.parameters())}


def test_extra_parameters_are_left_out_of_the_main_optimiser() -> None:
    method = WithExtra()
    main = {id(parameter) for parameter in main_parameters(method)}
    assert main == {id(parameter) for parameter in method.net.parameters()}


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_an_optimiser_continues_from_its_saved_state_bit_for_bit(kind: Any) -> None:
    stage = Stage(optimizer=kind, lr=0.01)

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Conv2d(3, 4, 3)
        net.weight.data = net.weight.data.contiguous(memory_format=torch.channels_last)
        return net, build_optimizer(stage, net.parameters())

    def steps(net: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
        for seed in seeds:
            images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
            net(images).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    whole, optimizer = make()
    steps(whole, optimizer, range(6))
    net, first = make()
    steps(net, first, range(3))
    second = build_optimizer(stage, net.parameters())
    load_optimizer_tensors(second, {name: value.clone() for name, value in optimizer_tensors(first).items()})
    steps(net, second, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), net.parameters(), strict=True))


def test_averaged_weights_equal_a_slow_loop_with_a_rising_decay() -> None:
    module = nn.Linear(3, 2)
    averaged = AveragedWeights(module, decay=0.5)
    expected = [parameter.detach().double() for parameter in module.parameters()]
    for t in range(30):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(t)))
        averaged.update()
        decay = min(0.5, (1 + t) / (10 + t))  # the warm-up: 0.1, 0.18, ... reaches 0.5 at t = 8
        expected = [
            decay * old + (1 - decay) * new.detach().double()
            for old, new in zip(expected, module.parameters(), strict=True)
        ]
    for value, wanted in zip(averaged.average, expected, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)


def test_averaged_weights_are_in_the_model_only_inside_and_also_after_an_error() -> None:
    module = nn.Linear(1, 1)
    averaged = AveragedWeights(module, 0.9)
    with torch.no_grad():
        module.weight.fill_(5.0)
    averaged.average[0].fill_(3.0)
    inside = 0.0
    with contextlib.suppress(RuntimeError), averaged.applied():
        inside = module.weight.item()
        raise RuntimeError
    assert inside == 3.0
    assert module.weight.item() == 5.0
    assert averaged.average[0].item() == 3.0
    averaged.restart()
    assert averaged.average[0].item() == 5.0
    assert averaged.updates == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_scaled_gradients_are_clipped_to_their_true_length(optimizer: Any) -> None:
    """Those of 16-mixed, with the fused optimizers that Fabric's own clipping refuses."""
    module = nn.Linear(3, 1, bias=False)
    built = build_optimizer(Stage(optimizer=optimizer, lr=0.1), module.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(module(torch.tensor([[30.0, 0.0, 40.0]])).sum()).backward()
    clip_gradients(built, 5.0, scaler)
    assert module.weight.grad is not None
    torch.testing.assert_close(module.weight.grad, torch.tensor([[3.0, 0.0, 4.0]]))
    scaler.step(built)  # takes them as they are
    scaler.update()
    assert module.weight.isfinite().all()


def test_a_tally_of_numbers_from_two_devices_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method may log what it drew on the CPU; `meta` stands for a GPU."""
    monkeypatch.setattr(records, "world", lambda: 2)
    tally = Tally()
    tally.add({"drawn": torch.tensor(1.0), "loss": torch.tensor(1.0, device="meta")})
    monkeypatch.setattr(records, "summed", lambda total: total)
    tally.share()
    assert {each.device.type for each in tally.sums.values()} == {"meta"}


def test_a_tally_gives_the_mean_of_each_name_since_the_last_reading() -> None:
    tally = Tally()
    value = torch.tensor(1.0)
    tally.add({"a": value, "b": torch.tensor(10.0)})
    value += 100  # what was added must not change with it
    tally.add({"a": torch.tensor(2.0)})
    assert tally.means() == {"a": 1.5, "b": 10.0}
    tally.add({"a": torch.tensor(7.0)})
    assert tally.means() == {"a": 7.0}


def test_a_restored_tally_goes_on_where_it_was() -> None:
    tally, other = Tally(), Tally()
    for each in (tally, other):
        each.add({"z": torch.tensor(0.1), "a": torch.tensor(0.2)})
    restored = Tally()
    restored.restore({"a": other.sums["a"], "z": other.sums["z"]}, other.counts)
    for each in (tally, restored):
        each.add({"z": torch.tensor(0.7)})
    assert list(tally.means().items()) == list(restored.means().items())
