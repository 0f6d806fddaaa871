"""One-vs-all heads: every loss against its formula in probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from osp.parts.matching import binary_entropy
from osp.parts.one_vs_all import (
    OneVsAllHead,
    all_negatives_loss,
    hardest_negative_loss,
    linear_layers,
    one_vs_all_loss,
    positive_loss,
    soft_consistency,
)

LN2 = math.log(2)


def problem(n: int = 40, k: int = 5) -> tuple[Tensor, Tensor, list[list[float]]]:
    """Margins, targets, and the probabilities o as lists."""
    draws = torch.Generator().manual_seed(0)
    margins = 3 * torch.randn(n, k, generator=draws)
    return margins, torch.randint(k, (n,), generator=draws), torch.sigmoid(margins.double()).tolist()


@pytest.mark.parametrize("hidden", [(), (7, 6)])
def test_the_head_is_a_softmax_over_each_classs_pair_of_logits(hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    head = OneVsAllHead(10, 4, hidden)
    features = torch.randn(6, 10)
    pairs = head.layers(features).view(6, 2, 4).softmax(dim=1)  # "out" first
    torch.testing.assert_close(torch.sigmoid(head(features)), pairs[:, 1])
    assert any(name.endswith("bias") for name, _ in head.named_parameters()) == bool(hidden)


def test_margins_of_a_network_in_half_precision_are_single() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert OneVsAllHead(10, 4)(torch.randn(6, 10)).dtype == torch.float32


def test_layers_have_relu_between_them_but_not_behind() -> None:
    layers = linear_layers([3, 8, 2])
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ReLU", "Linear"]
    assert not layers.state_dict()["0.bias"].any()


def test_zero_margins_give_the_values_worked_by_hand() -> None:
    margins, targets = torch.zeros(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    assert one_vs_all_loss(margins, targets).item() == pytest.approx(2 * LN2)
    assert binary_entropy(margins).mean().item() == pytest.approx(LN2)
    assert all_negatives_loss(margins, targets).item() == pytest.approx(LN2 * 3 / 4)


def test_the_losses_equal_a_loop_over_images_and_classes() -> None:
    margins, targets, probabilities = problem()
    positive = hardest = everyone = entropy = 0.0
    for o, y in zip(probabilities, targets.tolist(), strict=True):
        negatives = [-math.log(1 - o[k]) for k in range(5) if k != y]
        positive += -math.log(o[y])
        hardest += max(negatives)
        everyone += sum(negatives)
        entropy += sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in o)
    assert positive_loss(margins, targets).item() == pytest.approx(positive / 40, rel=1e-5)
    assert hardest_negative_loss(margins, targets).item() == pytest.approx(hardest / 40, rel=1e-5)
    assert all_negatives_loss(margins, targets).item() == pytest.approx(everyone / 200, rel=1e-5)
    assert binary_entropy(margins).mean().item() == pytest.approx(entropy / 200, rel=1e-5)


@pytest.mark.parametrize("loss", [hardest_negative_loss, all_negatives_loss])
def test_the_own_class_is_never_a_negative(loss: torch.nn.Module) -> None:
    """Also where every other class is nearly impossible."""
    margins = torch.tensor([[100.0, -30.0, -40.0], [-40.0, 100.0, -30.0]], requires_grad=True)
    value = loss(margins, torch.tensor([0, 1]))
    assert value.item() < 1e-12
    value.backward()
    assert margins.grad is not None
    assert margins.grad[0, 0] == margins.grad[1, 1] == 0


def test_only_the_hardest_negative_gets_a_gradient_and_all_negatives_all_do() -> None:
    margins, targets, _ = problem()
    for loss, count in ((hardest_negative_loss, 1), (all_negatives_loss, 4)):
        found = margins.clone().requires_grad_()
        loss(found, targets).backward()  # type: ignore[no-untyped-call]
        assert found.grad is not None
        assert ((found.grad != 0).sum(dim=1) == count).all()


def test_soft_consistency_is_zero_for_equal_views_and_2k_for_opposite_ones_and_moves_both() -> None:
    margins, _, _ = problem()
    sure = torch.full((3, 5), 50.0)
    assert soft_consistency(margins, margins).item() == 0.0
    assert soft_consistency(sure, -sure).item() == pytest.approx(10.0)
    one, other = margins.clone().requires_grad_(), (margins + 1).requires_grad_()
    soft_consistency(one, other).backward()  # type: ignore[no-untyped-call]
    assert one.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(one.grad.sign(), -other.grad.sign())
    assert one.grad.abs().min() > 0


def test_huge_margins_keep_losses_and_gradients_finite() -> None:
    margins = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    targets = torch.tensor([0])
    loss = one_vs_all_loss(margins, targets) + all_negatives_loss(margins, targets) + binary_entropy(margins).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()
    assert margins.grad is not None
    assert margins.grad.isfinite().all()
    assert margins.grad[0, 0] == -1.0
