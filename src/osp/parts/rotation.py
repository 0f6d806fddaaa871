"""Rotation recognition (L_rot): which quarter turn was an image given?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate4(images: Tensor) -> Tensor:
    """All images unrotated, then all turned by 90, 180 and 270 degrees: 4N images."""
    return torch.cat([torch.rot90(images, turns, dims=(2, 3)) for turns in range(4)])


def rotation_loss(logits: Tensor) -> Tensor:
    """L_rot: mean cross-entropy of the four rotations, for logits in the order of `rotate4`."""
    targets = torch.arange(4, device=logits.device).repeat_interleave(len(logits) // 4)
    return F.cross_entropy(logits, targets)
