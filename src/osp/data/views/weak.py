"""Mirrored, and cropped after reflect padding of 1/8 of the side: the weak augmentation of FixMatch."""

from __future__ import annotations

import torch
from torch import Tensor

from osp.data.views.base import Draws, ImageKind, to_device
from osp.data.views.flip import Flip
from osp.data.views.image_ops import crop_and_flip


class Weak(Flip):
    """Draws `flip`, and `shift` (int64, n×2): how far the crop lies below and right of the image, from -pad to pad."""

    def __init__(self, kind: ImageKind) -> None:
        super().__init__(kind)
        _, height, width = kind.shape
        self.pad = (int(height / 8), int(width / 8))

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        flip = super().draw(n, generator)
        shift = [torch.randint(-pad, pad + 1, (n,), generator=generator) for pad in self.pad]
        return {**flip, "shift": torch.stack(shift, dim=1)}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        flip = to_device(draws["flip"], images.device) if "flip" in draws else None
        return crop_and_flip(images, to_device(draws["shift"], images.device), flip)
