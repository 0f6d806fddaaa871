"""Divergences and masks, against torch's own and loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy  # type: ignore[import-untyped]
from torch import Tensor

from osp.parts.consistency import kl_divergence, noise_consistency, noisy, sharpened_consistency

THRESHOLD = 0.8


def logits(n: int = 20, classes: int = 5, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_confidence(*confidences: float) -> Tensor:
    """Logits of two classes whose softmax has these maxima."""
    return torch.tensor([[math.log(p), math.log(1 - p)] for p in confidences], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.4, 2.0])
def test_kl_divergence_is_that_of_torch_and_scipy(temperature: float) -> None:
    target, other = logits(seed=0), logits(seed=1)
    found = kl_divergence(target, other, temperature)
    q = (target / temperature).softmax(1)
    expected = F.kl_div(other.log_softmax(1), q, reduction="none").sum(1)
    torch.testing.assert_close(found, expected)
    assert found.tolist() == pytest.approx(entropy(q.numpy(), other.softmax(1).numpy(), axis=1).tolist())


def test_half_precision_does_not_spoil_the_divergence_of_near_predictions() -> None:
    near = logits(50).float()
    target = near + 0.05 * logits(50, seed=3).float()
    exact = kl_divergence(target.bfloat16().double(), near.bfloat16().double())
    with torch.autocast("cpu", torch.bfloat16):
        found = kl_divergence(target.bfloat16(), near.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-6)


def test_kl_divergence_of_certain_predictions_is_a_number() -> None:
    certain = torch.tensor([[1e4, 0.0], [0.0, 1e4]], requires_grad=True)
    value = kl_divergence(certain.detach(), certain)
    value.sum().backward()  # type: ignore[no-untyped-call]
    assert value.tolist() == [0.0, 0.0]
    assert certain.grad is not None
    assert certain.grad.isfinite().all()


def test_the_consistency_is_the_mean_over_confident_images_of_the_sharpened_divergence() -> None:
    weak, strong = logits(seed=0), logits(seed=1)
    value, mask = sharpened_consistency(weak, strong, 0.4, THRESHOLD)
    total, count = 0.0, 0
    for i in range(len(weak)):
        if weak[i].softmax(0).max() >= THRESHOLD:
            q, p = (weak[i] / 0.4).softmax(0), strong[i].softmax(0)
            total += sum(float(q[c] * (q[c].log() - p[c].log())) for c in range(5))
            count += 1
    assert 0 < count < len(weak)
    assert int(mask.sum()) == count
    assert value.item() == pytest.approx(total / count)


def test_the_threshold_itself_is_confident_and_the_sharpened_prediction_does_not_count() -> None:
    weak = with_confidence(0.79, 0.81, 0.5)
    at_threshold = float(weak[1].softmax(0).max())
    _, mask = sharpened_consistency(weak, torch.zeros_like(weak), 0.1, at_threshold)
    assert mask.tolist() == [False, True, False]


def test_no_confident_image_gives_zero_with_a_gradient_of_zero() -> None:
    weak = with_confidence(0.5, 0.7)
    strong = logits(2, 2).requires_grad_()
    value, mask = sharpened_consistency(weak, strong, 0.4, THRESHOLD)
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == 0.0
    assert not mask.any()
    assert strong.grad is not None
    assert torch.equal(strong.grad, torch.zeros_like(strong))


def test_no_gradient_reaches_the_weak_logits() -> None:
    weak, strong = logits(seed=0).requires_grad_(), logits(seed=1).requires_grad_()
    sharpened_consistency(weak, strong, 0.4, THRESHOLD)[0].backward()  # type: ignore[no-untyped-call]
    assert weak.grad is None
    assert strong.grad is not None
    assert strong.grad.abs().sum() > 0


@pytest.mark.parametrize("scale", [0.7, torch.tensor(0.7)])
def test_noise_has_the_given_deviation(scale: float | Tensor) -> None:
    features = 7.0 * torch.randn(500, 64, generator=torch.Generator().manual_seed(0)) + 3.0
    noise = noisy(features, scale, torch.Generator().manual_seed(1)) - features
    assert noise.std().item() == pytest.approx(0.7, rel=0.02)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.02)
    assert torch.equal(noisy(features, 0.0, torch.Generator()), features)


def test_noise_passes_the_gradient_on_as_it_is() -> None:
    features = torch.randn(4, 3, requires_grad=True)
    noisy(features, 0.5, torch.Generator().manual_seed(0)).sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert torch.equal(features.grad, torch.ones_like(features))


def test_noise_consistency_is_the_mean_divergence_from_the_clean_prediction() -> None:
    clean, changed = logits(seed=0).requires_grad_(), logits(seed=1).requires_grad_()
    value = noise_consistency(clean, changed)
    expected = F.kl_div(changed.log_softmax(1), clean.softmax(1), reduction="batchmean")
    assert value.item() == pytest.approx(expected.item())
    value.backward()  # type: ignore[no-untyped-call]
    assert clean.grad is None
    assert changed.grad is not None
    assert noise_consistency(clean, clean).item() == pytest.approx(0.0)
