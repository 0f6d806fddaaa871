"""MixMatch's pieces against slow loops and numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from osp.parts.mixing import guess_labels, mix, mixing_weights, mixmatch_losses, sharpen


def test_sharpening_raises_probabilities_to_a_power_and_divides_by_their_sum() -> None:
    given = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    expected = torch.tensor([[25 / 38, 9 / 38, 4 / 38], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(sharpen(given, 0.5), expected)
    torch.testing.assert_close(sharpen(given, 1.0), given)


def test_sharpening_hard_stays_finite() -> None:
    """0.2^(1/0.005) is far below the smallest float."""
    sharp = sharpen(torch.tensor([[0.2, 0.2, 0.2, 0.19, 0.21]]), 0.005)
    assert sharp.argmax().item() == 4
    assert sharp.sum().item() == pytest.approx(1)


def test_guessed_labels_are_the_sharpened_mean_over_views_and_carry_no_gradient() -> None:
    one = torch.tensor([[0.0, math.log(3)]], requires_grad=True)  # (1/4, 3/4)
    other = torch.tensor([[0.0, 0.0]], requires_grad=True)  # (1/2, 1/2)
    guessed = guess_labels([one, other], 0.5)  # the mean is (3/8, 5/8)
    torch.testing.assert_close(guessed, torch.tensor([[9 / 34, 25 / 34]]))
    assert not guessed.requires_grad


@pytest.mark.parametrize("a", [0.1, 0.75, 5.0])
def test_a_mixing_weight_is_never_below_one_half(a: float) -> None:
    weights = mixing_weights(10_000, a, torch.Generator().manual_seed(0))
    assert weights.shape == (10_000,)
    assert 0.5 <= weights.min().item() < 0.51
    assert weights.max().item() <= 1
    assert weights.std().item() > 0.05  # one draw a sample


def test_mixing_equals_a_loop_over_the_samples() -> None:
    torch.manual_seed(0)
    images, targets = torch.randn(6, 3, 4, 4), torch.randn(6, 5).softmax(1)
    weights, order = torch.rand(6), torch.randperm(6)
    mixed, mixed_targets = mix(images, targets, weights, order)
    for i in range(6):
        j, w = int(order[i]), float(weights[i])
        torch.testing.assert_close(mixed[i], w * images[i] + (1 - w) * images[j])
        torch.testing.assert_close(mixed_targets[i], w * targets[i] + (1 - w) * targets[j])
    torch.testing.assert_close(mixed_targets.sum(1), torch.ones(6))


def test_the_losses_equal_a_loop() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(7, 4), torch.randn(7, 4).softmax(1)
    cross_entropy, squares = mixmatch_losses(logits, targets, labeled=3)
    p, t = logits.softmax(1).tolist(), targets.tolist()
    expected_x = sum(-t[i][c] * math.log(p[i][c]) for i in range(3) for c in range(4)) / 3
    expected_u = sum((p[i][c] - t[i][c]) ** 2 for i in range(3, 7) for c in range(4)) / (4 * 4)
    assert cross_entropy.item() == pytest.approx(expected_x, rel=1e-5)
    assert squares.item() == pytest.approx(expected_u, rel=1e-5)


def test_targets_get_no_gradient_from_the_losses() -> None:
    logits, targets = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    sum(mixmatch_losses(logits, targets.softmax(1), labeled=2)).backward()  # type: ignore[union-attr]
    assert targets.grad is None
    assert logits.grad is not None
    assert (logits.grad.abs().sum(1) > 0).all()
