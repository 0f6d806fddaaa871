"""What several networks share."""

from __future__ import annotations

from torch import Tensor, nn


def initialize(module: nn.Module) -> None:
    """Kaiming-normal (fan out) convolutions, unit batch norms."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="leaky_relu")
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)


class ResidualPair(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*conv_norm(channels, channels), *conv_norm(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.layers(images)
        return images + changed


def three_pairs(width: int, kernel: int) -> tuple[nn.Module, ...]:
    """Residual pairs on `width`, twice and four times as many channels, halved in between by convolutions."""
    return (
        ResidualPair(width),
        *conv_norm(width, 2 * width, stride=2, kernel=kernel),
        ResidualPair(2 * width),
        *conv_norm(2 * width, 4 * width, stride=2, kernel=kernel),
        ResidualPair(4 * width),
    )


def conv_norm(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Convolution, batch norm, LeakyReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1, inplace=True)
