"""Muon: filters turn by orthogonal steps of known length, everything else is Nesterov's SGD."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from osp.engine.muon import COEFFICIENTS, OTHERS, Muon, orthogonal, turn
from osp.engine.optim import build_optimizer, load_optimizer_tensors, optimizer_tensors
from osp.methods import Stage


def singular_polynomial(value: float, iterations: int) -> float:
    """What the iteration makes of one singular value."""
    a, b, c = COEFFICIENTS
    for _ in range(iterations):
        value = a * value + b * value**3 + c * value**5
    return value


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_singular_vectors_stay_and_singular_values_follow_the_polynomial(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    expected = [singular_polynomial(float(value / matrix.norm()), 3) for value in values]
    assert torch.allclose(orthogonal(matrix, 3), left @ torch.diag(torch.tensor(expected)) @ right, atol=1e-4)


def test_more_iterations_bring_the_singular_values_near_one() -> None:
    found = torch.linalg.svdvals(orthogonal(torch.randn(16, 40, generator=torch.Generator().manual_seed(1)), 6))
    assert found.min() > 0.6
    assert found.max() < 1.3


def test_a_turn_keeps_the_length_and_has_the_asked_size() -> None:
    draws = torch.Generator().manual_seed(2)
    filters, direction = torch.randn(6, 3, 3, 3, generator=draws), torch.randn(6, 3, 3, 3, generator=draws)
    before = filters.clone()
    turn(filters, direction, 0.1)
    step = orthogonal(direction.flatten(1)).view_as(before)
    moved = before - 0.1 * before.norm() / 6**0.5 * step
    assert torch.allclose(filters, moved * before.norm() / moved.norm(), atol=1e-6)
    assert torch.isclose(filters.norm(), before.norm())


def test_filters_that_begin_at_zero_take_unit_length_and_stay_finite_without_a_gradient() -> None:
    filters = torch.zeros(2, 1, 3, 3)
    turn(filters, torch.zeros(2, 1, 3, 3), 0.1)
    assert torch.equal(filters, torch.zeros(2, 1, 3, 3))
    direction = torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(6))
    turn(filters, direction, 0.1)
    assert torch.isclose(filters.norm(), torch.tensor(2.0).sqrt())
    assert (filters * direction).sum() < 0


def test_three_iterations_are_the_default() -> None:
    found = torch.linalg.svdvals(orthogonal(torch.diag(torch.tensor([3.0, 1.0, 0.3]))))
    expected = sorted((singular_polynomial(value / 10.09**0.5, 3) for value in (3.0, 1.0, 0.3)), reverse=True)
    assert found.tolist() == pytest.approx(expected, abs=1e-3)


def gradients(parameter: nn.Parameter) -> list[Tensor]:
    draws = torch.Generator().manual_seed(3)
    return [torch.randn(parameter.shape, generator=draws) for _ in range(3)]


def test_what_is_no_filter_follows_nesterov_with_decay() -> None:
    parameter = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    optimizer = build_optimizer(Stage(optimizer="muon", lr=0.1, momentum=0.9, weight_decay=0.5), [parameter])
    value, velocity = parameter.detach().clone(), torch.zeros(1, 2)
    for gradient in gradients(parameter):
        parameter.grad = gradient.clone()
        optimizer.step()
        full = gradient + 0.5 * value
        velocity = 0.9 * velocity + full
        value = value - OTHERS * 0.1 * (full + 0.9 * velocity)
    assert torch.allclose(parameter.detach(), value)


def test_filters_follow_the_formula_without_decay() -> None:
    parameter = nn.Parameter(torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(4)))
    optimizer = build_optimizer(Stage(optimizer="muon", lr=0.2, momentum=0.9, weight_decay=0.5), [parameter])
    value, velocity = parameter.detach().clone(), torch.zeros(4, 2, 3, 3)
    for gradient in gradients(parameter):
        parameter.grad = gradient.clone()
        optimizer.step()
        velocity = 0.9 * velocity + gradient
        turn(value, gradient + 0.9 * velocity, 0.2)
    assert torch.allclose(parameter.detach(), value, atol=1e-6)


def test_every_parameter_is_in_one_group_and_only_convolutions_turn() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    optimizer = build_optimizer(Stage(optimizer="muon"), net.parameters())
    assert isinstance(optimizer, Muon)
    turned = {id(p) for group in optimizer.param_groups if group["filters"] for p in group["params"]}
    assert turned == {id(net[0].weight)}
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in net.parameters())


def test_a_saved_state_goes_on_as_if_nothing_had_been() -> None:
    def fresh() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(5)))
        return parameter, build_optimizer(Stage(optimizer="muon", lr=0.2), [parameter])

    straight, optimizer = fresh()
    stopped, first = fresh()
    one, *others = gradients(straight)
    for parameter, each in ((straight, optimizer), (stopped, first)):
        parameter.grad = one.clone()
        each.step()
    resumed = nn.Parameter(stopped.detach().clone())
    second = build_optimizer(Stage(optimizer="muon", lr=0.2), [resumed])
    load_optimizer_tensors(second, {key: value.clone() for key, value in optimizer_tensors(first).items()})
    for gradient in others:
        for parameter, each in ((straight, optimizer), (resumed, second)):
            parameter.grad = gradient.clone()
            each.step()
    assert torch.equal(straight, resumed)
