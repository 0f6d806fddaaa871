"""Soft orthogonal decomposition (Eq. 7-9): take the OOD direction out of a feature, and predict from the rest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def prune(features: Tensor, ood_features: Tensor, alpha: float = 0.8) -> Tensor:
    """Eq. 8: z_r = z - α z_b, where z = z_a + z_b splits z across and along o (Eq. 7): z_b = (z·o / ‖o‖²) o.

    Row by row. α = 1 makes the result orthogonal to o, α = 0 changes nothing; the paper softens with 0.8. No gradient
    flows into o; a vanishing o leaves z as it is.

    >>> prune(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]]), alpha=1.0).tolist()
    [[0.0, 4.0]]
    """
    z, ood = _wide(features), _wide(ood_features.detach())
    return torch.addcmul(z, _share(z, ood), ood, value=-alpha).to(features.dtype)


def pruned_logits(
    classifier: nn.Linear, logits: Tensor, features: Tensor, ood_features: Tensor, alpha: float = 0.8
) -> Tensor:
    """Eq. 9: F(z_r) = F(z) - α (z·o / ‖o‖²) W o for a linear classifier F(z) = W z + b; its softmax is p_r.

    The same as `classifier(prune(features, ood_features, alpha))` from the logits of z, without making the pruned
    features: they are wide.
    """
    z, ood = _wide(features), _wide(ood_features.detach())
    with torch.autocast(z.device.type, enabled=False):
        shadow = F.linear(ood, classifier.weight.to(ood.dtype))
    return torch.addcmul(logits.to(z.dtype), _share(z, ood), shadow, value=-alpha)


def _share(z: Tensor, ood: Tensor) -> Tensor:
    """z·o / ‖o‖², row by row, N×1."""
    with torch.autocast(z.device.type, enabled=False):  # it would take the products in half precision again
        along, squared_norm = torch.linalg.vecdot(z, ood), torch.linalg.vecdot(ood, ood)
    share: Tensor = along / squared_norm.clamp(min=torch.finfo(z.dtype).tiny)
    return share.unsqueeze(-1)


def _wide(features: Tensor) -> Tensor:
    """In single precision at least: squares overflow half precision."""
    return features.to(torch.promote_types(features.dtype, torch.float32))
