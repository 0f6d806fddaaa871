"""Anchors and the orthogonality losses: Eq. 2-4 and Eq. 10 of the paper."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from osp.parts.consistency import kl_divergence
from osp.parts.reduce import masked_mean, widened


def labeled_anchors(logits: Tensor, targets: Tensor, delta: float = 0.8) -> Tensor:
    """Eq. 2: labeled images of class c with p[c] > δ, as a mask; their class is the label."""
    return widened(logits.detach()).softmax(dim=1).gather(1, targets[:, None]).squeeze(1) > delta


def unlabeled_anchors(logits: Tensor, delta: float = 0.8) -> tuple[Tensor, Tensor]:
    """Eq. 3: unlabeled images with max p > δ, as a mask, and their class ŷ = argmax p."""
    confidence, classes = widened(logits.detach()).softmax(dim=1).max(dim=1)
    return confidence > delta, classes


def labeled_orthogonality_loss(
    logits: Tensor,
    pruned_logits: Tensor,
    targets: Tensor,
    anchors: Tensor,
    temperature: float = 1.0,
    least: float = 0.0,
) -> Tensor:
    """Eq. 10, L_odc^l: mean over labeled anchors of KL(p ‖ p_r) - ln p_r[y].

    The paper writes the second mean per class and outside the class sum; read as one mean over all labeled anchors.
    `least`: see `masked_mean`; with 1, our default (`least_share`), it is the mean over the batch.
    """
    divergence = kl_divergence(logits, pruned_logits, temperature)
    return masked_mean(divergence + F.cross_entropy(pruned_logits, targets, reduction="none"), anchors, least)


def unlabeled_orthogonality_loss(
    logits: Tensor, pruned_logits: Tensor, anchors: Tensor, temperature: float = 1.0, least: float = 0.0
) -> Tensor:
    """Eq. 10, L_odc^u: (1/M) Σ over unlabeled anchors of KL(p ‖ p_r), M read as their number."""
    return masked_mean(kl_divergence(logits, pruned_logits, temperature), anchors, least)
