"""Soft orthogonal decomposition: Eq. 7 and 8."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from osp.parts.pruning import prune, pruned_logits


def pairs(n: int = 50, dim: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    z, o = (torch.randn(n, dim, generator=draws, dtype=dtype) for _ in range(2))
    return z, o * torch.logspace(-3, 3, n, dtype=dtype)[:, None]  # the length of o must not matter


def test_a_hand_worked_case() -> None:
    # z·o = 3·1 + 4·1 = 7, |o|² = 2: z_b = (3.5, 3.5); z_r = z - 0.8 z_b
    pruned = prune(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0]]), alpha=0.8)
    torch.testing.assert_close(pruned, torch.tensor([[3 - 2.8, 4 - 2.8]]))


def test_full_pruning_is_orthogonal_to_the_ood_feature() -> None:
    z, o = pairs()
    cosine = torch.nn.functional.cosine_similarity(prune(z, o, 1.0), o)
    assert cosine.abs().max() < 1e-5


def test_no_pruning_changes_nothing() -> None:
    z, o = pairs()
    assert torch.equal(prune(z, o, 0.0), z)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_a_feature_pruned_by_itself_shrinks(alpha: float) -> None:
    z, _ = pairs()
    torch.testing.assert_close(prune(z, z, alpha), (1 - alpha) * z)


def test_the_two_parts_are_those_of_proposition_1() -> None:
    """z = z_a + z_b with z_a ⟂ o of length |z| sin, z_b ∥ o of length |z| cos of the angle between them."""
    z, o = pairs(dtype=torch.float64)
    z_a = prune(z, o, 1.0)
    z_b = z - z_a
    cosine = (z * o).sum(1) / (z.norm(dim=1) * o.norm(dim=1))
    sine = (1 - cosine**2).sqrt()
    torch.testing.assert_close(z_a.norm(dim=1), z.norm(dim=1) * sine)
    torch.testing.assert_close(z_b.norm(dim=1), z.norm(dim=1) * cosine.abs())
    torch.testing.assert_close((z_a * z_b).sum(1), torch.zeros(len(z), dtype=z.dtype))
    torch.testing.assert_close(z_b / z_b.norm(dim=1, keepdim=True), cosine.sign()[:, None] * o / o.norm(dim=1)[:, None])
    torch.testing.assert_close(prune(z, o, 0.8), z_a + 0.2 * z_b)


@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.0])
def test_the_logits_of_pruned_features_need_no_pruned_features(alpha: float) -> None:
    draws = torch.Generator().manual_seed(0)
    classifier = torch.nn.Linear(9, 4)
    z, o = torch.randn(7, 9, generator=draws), torch.randn(7, 9, generator=draws)
    o[2] = 0.0
    weights = torch.randn(7, 4, generator=draws)
    values, gradients = [], []
    for form in (
        lambda z: classifier(prune(z, o, alpha)),
        lambda z: pruned_logits(classifier, classifier(z), z, o, alpha),
    ):
        leaf = z.clone().requires_grad_()
        logits = form(leaf)
        values.append(logits.detach())
        gradients.append(torch.autograd.grad((logits * weights).sum(), [leaf, *classifier.parameters()]))
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [0.0, 1e-4, 20.0])
def test_autocast_neither_overflows_nor_underflows(dtype: torch.dtype, length: float) -> None:
    """Also for the zeros that an empty queue gives, whose rows are masked out later: 0 times NaN would remain NaN."""
    draws = torch.Generator().manual_seed(0)
    classifier = torch.nn.Linear(1568, 4)
    z = (20 * torch.randn(5, 1568, generator=draws)).requires_grad_()
    o = length * torch.randn(5, 1568, generator=draws)
    expected = classifier(prune(z, o)).detach()
    with torch.autocast("cpu", dtype=dtype):
        logits = pruned_logits(classifier, classifier(z), z, o)
    logits[1:].sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logits.detach(), expected, rtol=0.02, atol=0.5)
    for each in (z, classifier.weight):
        assert each.grad is not None
        assert each.grad.isfinite().all()


def test_no_gradient_reaches_the_ood_feature() -> None:
    z, o = (each.requires_grad_() for each in pairs())
    prune(z, o).square().sum().backward()  # type: ignore[no-untyped-call]
    assert o.grad is None
    assert z.grad is not None


def test_the_gradient_reaches_z_through_i_minus_alpha_times_the_projection() -> None:
    z, o = (each[:1] for each in pairs(dtype=torch.float64))
    found = torch.autograd.functional.jacobian(lambda each: prune(each, o, 0.8)[0], z)[:, 0]  # type: ignore[no-untyped-call]
    expected = torch.eye(16, dtype=torch.float64) - 0.8 * o.T @ o / (o @ o.T)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1e-19])
def test_a_vanishing_ood_feature_gives_numbers_and_finite_gradients(size: float) -> None:
    z = pairs()[0].requires_grad_()
    o = torch.full_like(z, size).detach()
    pruned = prune(z, o)
    pruned.sum().backward()  # type: ignore[no-untyped-call]
    assert pruned.isfinite().all()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    if size == 0.0:
        assert torch.equal(pruned, z)
        assert torch.equal(z.grad, torch.ones_like(z))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [0.0, 1e-4, 1.0, 200.0])
def test_half_precision_neither_overflows_nor_underflows(dtype: torch.dtype, length: float) -> None:
    """Squares of 128 values of 200 sum to 5 million, far above what float16 can hold."""
    draws = torch.Generator().manual_seed(0)
    z = (torch.randn(20, 128, generator=draws) * 10).to(dtype)
    o = (torch.randn(20, 128, generator=draws) * length).to(dtype)
    pruned = prune(z, o, 0.8)
    assert pruned.dtype == dtype
    torch.testing.assert_close(pruned.float(), prune(z.float(), o.float(), 0.8), rtol=1e-2, atol=1e-1)


def test_half_precision_features_take_partners_of_the_bank_in_single_precision() -> None:
    z, o = pairs()
    assert prune(z.bfloat16(), o).dtype == torch.bfloat16
