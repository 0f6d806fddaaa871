"""Gaussian noise on the images, which the recipes of Oliver et al. 2018 add to the weak views in training."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from osp.methods.base import Options, Step
from osp.parts.draws import randn


class NoiseOptions(Options):
    input_noise: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise on the views, where pixels have one of about 1"
    )


def noisy(images: Tensor, scale: float, step: Step, name: str) -> Tensor:
    """images + scale · N(0, 1), with draws of this name; in testing there is none."""
    if not scale:
        return images
    noise = randn(tuple(images.shape), step.generator(f"noise {name}"))
    return images + scale * noise.to(images.device, non_blocking=True)
