"""Encoders: images in, one feature vector an image out.

Every encoder takes the number of channels and the image size and tells its `feature_dim`; nothing else in the project
assumes a feature size. Any size from 8x8 up and one or three channels work.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from osp.errors import UserError, suggest


class TwoLayerCNN(nn.Module):
    """The field's MNIST network (DS3L, Safe-Student): two 3x3 convolutions of 16 and 32 channels, each pooled by two.

    28x28 images give 1568 features. The dropout that the publications put before the classifier belongs to the
    classifier here (`feature_dropout`): features for matching and pruning are taken before it.
    """

    feature_dropout = 0.5

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        halved = [((side - 1) // 2 + 1 - 1) // 2 + 1 for side in (height, width)]
        self.feature_dim = 32 * halved[0] * halved[1]

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.pool(self.conv1(images)))
        return torch.relu(self.pool(self.conv2(hidden))).flatten(1)


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

    feature_dropout = 0.0

    def __init__(self, channels: int, depth: int, width: int) -> None:
        super().__init__()
        if (depth - 4) % 6 or depth < 10 or width < 1:
            raise UserError(
                f"wrn-{depth}-{width}: the depth must be 6n + 4 (10, 16, 22, 28, ...), the width at least 1."
            )
        per_group = (depth - 4) // 6
        sizes = [16, 16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(channels, sizes[0], 3, padding=1, bias=False)
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
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.activation(self.norm(self.blocks(self.stem(images))))
        return maps.mean(dim=(2, 3))


class SmallNet(nn.Module):
    """The network for two cores: four 3x3 convolutions that halve the image, each but the first followed by a residual
    pair, on 32, 64 and 128 channels (0.48 M parameters, 128 features).

    Halving in the very first layer is what makes it fast: CIFAR-100 after 100 s of supervised training on two cores,
    46 % against 31 % for WRN-10-1 and 24 % for WRN-16-1 (`docs/networks.md`).
    """

    feature_dropout = 0.0

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_norm(channels, width, stride=2),
            ResidualPair(width),
            *conv_norm(width, 2 * width, stride=2),
            ResidualPair(2 * width),
            *conv_norm(2 * width, 4 * width, stride=2),
            ResidualPair(4 * width),
        )
        self.feature_dim = 4 * width
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))


class ResidualPair(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*conv_norm(channels, channels), *conv_norm(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.layers(images)
        return images + changed


def conv_norm(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, nn.Module, nn.Module]:
    """3x3 convolution, batch norm, LeakyReLU."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1, inplace=True)


def initialise(module: nn.Module) -> None:
    """Kaiming-normal (fan out) convolutions, unit batch norms."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="leaky_relu")
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)


NAMES = ("cnn", "small", "wrn-28-2")


def build_encoder(name: str, channels: int, height: int, width: int) -> nn.Module:
    """The encoder of this name: `cnn`, `small`, or `wrn-D-W` for any depth and width."""
    if name == "cnn":
        return TwoLayerCNN(channels, height, width)
    if name == "small":
        return SmallNet(channels)
    found = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if found:
        return WideResNet(channels, int(found[1]), int(found[2]))
    raise UserError(f"Unknown network {name!r}.{suggest(name, NAMES)} Any wrn-DEPTH-WIDTH works.")
