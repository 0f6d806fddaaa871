"""MixMatch's pieces: guessed and sharpened labels, mixed images and targets, and the two losses on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from osp.distributed import gathered
from osp.parts.draws import beta, permutation


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """q_c = p_c^(1/T) / Σ_j p_j^(1/T), row by row, in single precision.

    >>> sharpen(torch.tensor([[0.75, 0.25]]), 0.5)  # 9 : 1
    tensor([[0.9000, 0.1000]])
    """
    return (probabilities.float().log() / temperature).softmax(dim=1)


def guess_labels(logits: Sequence[Tensor], temperature: float) -> Tensor:
    """The mean of the softmax over several views of the same images, sharpened; without gradient."""
    mean = torch.stack([each.detach().float().softmax(dim=1) for each in logits]).mean(dim=0)
    return sharpen(mean, temperature)


def mixing_weights(rows: int, a: float, generator: torch.Generator) -> Tensor:
    """λ' = max(λ, 1 - λ) with λ ~ Beta(a, a), one for each sample: never below 1/2, so a sample stays mostly itself."""
    drawn = beta(rows, a, generator)
    return torch.maximum(drawn, 1 - drawn)


def mix(images: Tensor, targets: Tensor, weights: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """λ' v + (1 - λ') v[order], for images and targets alike, with a weight for each row.

    Weights and order may be on the CPU, where they are drawn. Partners are rows of the global batch (`permutation`):
    over several processes all images go to all of them, a few megabytes a step.
    """
    weights = weights.to(images.device, non_blocking=True)
    order = order.to(images.device, non_blocking=True)
    for_images = weights.to(images.dtype).view(-1, *[1] * (images.ndim - 1))
    for_targets = weights.to(targets.dtype)[:, None]
    others, their_targets = gathered(images)[order], gathered(targets)[order]
    return torch.lerp(others, images, for_images), torch.lerp(their_targets, targets, for_targets)


def mixtures(
    labeled: Tensor,
    labels: Tensor,
    looks: Tensor,
    guessed: Tensor,
    a: float,
    draws: Callable[[str], torch.Generator],
) -> tuple[Tensor, Tensor, Tensor]:
    """MixMatch's step: W = [labeled; first views; second views] mixed with itself in another order, targets likewise.

    `looks` holds both views of the unlabeled images, one after the other, `guessed` their common labels; `draws` gives
    a generator by name. Returns mixed images, their soft targets, and the weights λ'.
    """
    images = torch.cat([labeled, looks])
    targets = torch.cat([F.one_hot(labels, guessed.shape[1]).float(), guessed, guessed])
    weights = mixing_weights(len(images), a, draws("mixing"))
    order = permutation(len(images), draws("order"))
    return *mix(images, targets, weights, order), weights


def mixmatch_losses(logits: Tensor, targets: Tensor, labeled: int) -> tuple[Tensor, Tensor]:
    """L_x = mean over the first `labeled` rows of H(t, p); L_u = mean over the other rows and all classes of (p - t)².

    The targets are soft and get no gradient.
    """
    logits, targets = logits.float(), targets.detach().float()
    cross_entropy = F.cross_entropy(logits[:labeled], targets[:labeled])
    return cross_entropy, F.mse_loss(logits[labeled:].softmax(dim=1), targets[labeled:])
