"""What several networks share."""

from __future__ import annotations

from torch import nn


def initialize(module: nn.Module) -> None:
    """Kaiming-normal (fan out) convolutions, unit batch norms."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="leaky_relu")
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)
