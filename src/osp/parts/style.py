"""Style transfer by channel statistics: the mean and the spread of each color channel are an image's style."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-5
"""Added to variances: an empty image has none."""


def style(images: Tensor) -> tuple[Tensor, Tensor]:
    """μ and σ of each channel over space, N×C×1×1, without a gradient: σ = √(variance + 1e-5)."""
    images = images.detach().float()
    variance, mean = torch.var_mean(images, dim=(2, 3), correction=0, keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def adain(images: Tensor, donors: Tensor) -> Tensor:
    """AdaIN(a; b) = σ_b (a - μ_a) / σ_a + μ_b channel by channel: image a in the style of its donor b.

    Huang and Belongie, Arbitrary Style Transfer in Real-Time with Adaptive Instance Normalization, ICCV 2017.
    """
    mean, spread = style(images)
    donor_mean, donor_spread = style(donors)
    return donor_spread * (images - mean) / spread + donor_mean


def stylize(images: Tensor, donors: Tensor, strength: Tensor) -> Tensor:
    """(1 - β) a + β AdaIN(a; b), with a strength β for each image.

    >>> white, grey = torch.ones(1, 1, 8, 8), torch.full((1, 1, 8, 8), 0.5)
    >>> stylize(white, grey, torch.tensor([0.5])).unique().item()
    0.75
    """
    return images.lerp(adain(images, donors), strength.view(-1, 1, 1, 1))
