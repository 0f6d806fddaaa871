"""Consistency of predictions: between weak and strong views, and under noise."""

from __future__ import annotations

import torch
from torch import Tensor

from osp.parts.draws import randn
from osp.parts.reduce import masked_mean, widened


def kl_divergence(target_logits: Tensor, logits: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(q ‖ p) row by row with q = softmax(target logits / T), p = softmax(logits)."""
    target_logits, logits = widened(target_logits), widened(logits)
    log_target = (target_logits / temperature).log_softmax(dim=1)
    return (log_target.exp() * (log_target - logits.log_softmax(dim=1))).sum(dim=1)


def sharpened_consistency(
    weak_logits: Tensor, strong_logits: Tensor, temperature: float, threshold: float, least: float = 0.0
) -> tuple[Tensor, Tensor]:
    """L_u of UDA and T2T: mean over {max p(w(u)) >= threshold} of KL(softmax(f(w(u)) / T) ‖ p(s(u))), and the mask.

    The mask looks at the unsharpened prediction; no gradient flows into the weak logits; no sample gives 0.
    `least`: see `masked_mean`.
    """
    weak_logits = weak_logits.detach()
    mask = widened(weak_logits).softmax(dim=1).amax(dim=1) >= threshold
    return masked_mean(kl_divergence(weak_logits, strong_logits, temperature), mask, least), mask


def noisy(values: Tensor, scale: float | Tensor, generator: torch.Generator) -> Tensor:
    """Images or features + scale · N(0, 1); with a scale of 0.0 as they are."""
    if isinstance(scale, float) and not scale:
        return values
    return values + scale * randn(tuple(values.shape), generator).to(values.device, non_blocking=True)


def noise_consistency(logits: Tensor, noisy_logits: Tensor) -> Tensor:
    """Mean KL(sg[p(z)] ‖ p(z + ε)): the pre-training stage's demand, which the paper gives only in words."""
    return kl_divergence(logits.detach(), noisy_logits).mean()
