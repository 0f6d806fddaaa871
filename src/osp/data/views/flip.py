"""Half of the images mirrored, where that keeps their class."""

from __future__ import annotations

import torch
from torch import Tensor

from osp.data.views.base import Draws, View, coins, to_device


class Flip(View):
    """Draws `flip` (bool, n): mirrored or not; nothing where images must not be mirrored."""

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        return {"flip": coins(generator, n)} if self.kind.mirror else {}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        if "flip" not in draws:
            return images
        mirrored = to_device(draws["flip"], images.device)[:, None, None, None]
        return torch.where(mirrored, images.flip(3), images)
