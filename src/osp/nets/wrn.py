"""Wide residual networks of any depth and width: `wrn-28-2` is the field's network for 32x32 images."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from osp.errors import UserError
from osp.nets._layers import initialize
from osp.nets.registry import NetworkSpec, Shape


class PreActivationBlock(nn.Module):
    """BN - LeakyReLU - conv - BN - LeakyReLU - conv, plus the input (through a 1x1 convolution where channels change).

    As in the original, the shortcut starts from the raw input except in the network's very first block
    (`activate_shortcut`), where it starts from the activated one.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activate_shortcut: bool) -> None:
        super().__init__()
        self.activate_shortcut = activate_shortcut
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        changes = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if changes else None
        self.activation = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        activated = self.activation(self.bn1(images))
        hidden = self.conv2(self.activation(self.bn2(self.conv1(activated))))
        residual = activated if self.activate_shortcut else images
        total: Tensor = hidden + (residual if self.shortcut is None else self.shortcut(residual))
        return total


class WideResNet(nn.Module):
    """WRN-depth-width in its original pre-activation form (Zagoruyko and Komodakis 2016), LeakyReLU 0.1, no dropout.

    WRN-28-2 with a ten-class classifier has 1,467,610 parameters and 128 features.
    """

    def __init__(self, shape: Shape, depth: int, width: int) -> None:
        super().__init__()
        per_group, sizes = plan(depth, width)
        self.stem = nn.Conv2d(shape[0], sizes[0], 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        for group in range(3):
            for position in range(per_group):
                first = position == 0
                blocks.append(
                    PreActivationBlock(
                        sizes[group] if first else sizes[group + 1],
                        sizes[group + 1],
                        stride=2 if first and group > 0 else 1,
                        activate_shortcut=first and group == 0,
                    )
                )
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(sizes[3])
        self.activation = nn.LeakyReLU(0.1, inplace=True)
        self.feature_dim = sizes[3]
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.activation(self.norm(self.blocks(self.stem(images))))
        return maps.mean(dim=(2, 3))


def plan(depth: int, width: int) -> tuple[int, list[int]]:
    """Blocks per group, and the channels of the stem and of the three groups."""
    if (depth - 4) % 6 or depth < 10 or width < 1:
        raise UserError(f"wrn-{depth}-{width}: the depth must be 6n + 4 (10, 16, 22, 28, ...), the width at least 1.")
    return (depth - 4) // 6, [16, 16 * width, 32 * width, 64 * width]


def parameters(depth: int, width: int) -> int:
    """Of the blocks' 3x3 convolutions, which are nearly all: per group, one from the channels before, 2n - 1 between.

    >>> parameters(28, 2)  # of the encoder's 1,466,320
    1451520
    """
    per_group, sizes = plan(depth, width)
    return sum(9 * after * (before + (2 * per_group - 1) * after) for before, after in pairwise(sizes))


NETWORK = NetworkSpec(
    name="wrn-DEPTH-WIDTH",
    build=WideResNet,
    summary="wide residual network; wrn-28-2 has 1.47 M parameters",
    origin="Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016",
    license="MIT, as osp; no weights",
    example="wrn-28-2",
    cam_layer="activation",
    parameters=parameters,
)
