"""A small network without anything built in: it halves the image in its very first layer."""

from __future__ import annotations

from torch import Tensor, nn

from osp.nets._layers import conv_norm, initialize, three_pairs
from osp.nets.registry import NetworkSpec, Shape


class SmallNet(nn.Module):
    """Three 3x3 convolutions that halve the image, each followed by a residual pair, on 32, 64 and 128 channels.

    0.48 M parameters, 128 features. Halving in the very first layer is what makes it fast; how it compares with `fast`:
    `docs/networks.md`.
    """

    WIDTH = 32

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = self.WIDTH
        self.layers = nn.Sequential(*conv_norm(shape[0], width, stride=2), *three_pairs(width, kernel=3))
        self.feature_dim = 4 * width
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))


NETWORK = NetworkSpec(
    name="small",
    build=SmallNet,
    summary="0.48 M parameters: three convolutions that halve the image, each followed by a residual pair",
    origin="osp's own, for two cores",
    license="MIT, as osp; no weights",
    cam_layer="layers",
)
