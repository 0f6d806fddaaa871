"""The images as they are, only normalized: what the network is tested on."""

from __future__ import annotations

from torch import Tensor

from osp.data.views.base import Draws, View


class Plain(View):
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        return images
