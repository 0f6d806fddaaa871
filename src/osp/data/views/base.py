"""What a view is: random draws for a whole batch, made on the CPU, and a change of 8-bit images on any device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Draws = Mapping[str, Tensor]
"""The random numbers of one view of n images by name: CPU tensors with a row for each image."""


@dataclass(frozen=True)
class ImageKind:
    """What a view may know of the images."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    mirror: bool = True
    """Whether mirrored images keep their class: digits do not."""
    cutout: bool = True
    """Whether images keep their class when half of them is covered."""


class View(ABC):
    """One view of images of one kind.

    What is random is drawn for the global batch, so that each process can take its rows. As the draws lie on the CPU,
    images can be grouped by them without waiting for the device.
    """

    def __init__(self, kind: ImageKind) -> None:
        self.kind = kind

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """The draws for n images: a function of the (CPU) generator's state alone. By default there are none."""
        return {}

    @abstractmethod
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """The view of uint8 images N×C×H×W, as uint8 images on their device; the given ones are never changed."""


def coins(generator: torch.Generator, *size: int) -> Tensor:
    """True or false with equal chance."""
    return torch.rand(size, generator=generator) < 0.5


def to_device(draws: Tensor, device: torch.device) -> Tensor:
    """Without waiting for the device."""
    return draws.to(device, non_blocking=True)
