"""Soft orthogonal decomposition (Eq. 7 and 8): take the OOD direction out of a feature."""

from __future__ import annotations

import torch
from torch import Tensor


def prune(features: Tensor, ood_features: Tensor, alpha: float = 0.8) -> Tensor:
    """z_r = z - α z_b with z_b = (z·o / ‖o‖²) o, the part of z that lies along o (Eq. 8).

    Row by row. α = 1 makes the result orthogonal to o, α = 0 changes nothing; the paper softens with 0.8. No gradient
    flows into o; a vanishing o leaves z as it is.

    >>> prune(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]]), alpha=1.0).tolist()
    [[0.0, 4.0]]
    """
    wide = torch.promote_types(features.dtype, torch.float32)  # squares overflow half precision
    z, ood = features.to(wide), ood_features.detach().to(wide)
    along = torch.linalg.vecdot(z, ood).unsqueeze(-1)
    squared_norm = torch.linalg.vecdot(ood, ood).unsqueeze(-1).clamp(min=torch.finfo(wide).tiny)
    return torch.addcmul(z, along / squared_norm, ood, value=-alpha).to(features.dtype)
