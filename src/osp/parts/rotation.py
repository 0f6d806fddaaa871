"""Rotation recognition (L_rot): which quarter turn was an image given?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate4(images: Tensor) -> Tensor:
    """Square images turned anticlockwise by 0, 90, 180 and 270 degrees: all of one angle together, 4N images.

    >>> rotate4(torch.tensor([[[[1, 2], [3, 4]]]])).flatten(1)
    tensor([[1, 2, 3, 4],
            [2, 4, 1, 3],
            [4, 3, 2, 1],
            [3, 1, 4, 2]])
    """
    height, width = images.shape[-2:]
    if height != width:
        raise ValueError(f"images are {height}x{width}; only square ones can be turned by 90 degrees")
    return torch.cat([torch.rot90(images, turns, dims=(2, 3)) for turns in range(4)])


def rotation_loss(logits: Tensor) -> Tensor:
    """Eq. 12, L_rot: mean cross-entropy of the four rotations, for logits in the order of `rotate4`."""
    targets = torch.arange(4, device=logits.device).repeat_interleave(len(logits) // 4)
    return F.cross_entropy(logits, targets)
