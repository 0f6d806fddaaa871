"""What a view is: random draws for a whole batch, made on the CPU, and a change of 8-bit images on any device.

Views are found by name: one file each in this folder, or an installed package's entry point (group `osp.views`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from osp.errors import UserError, suggest
from osp.plugins import Plugins, only_class

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


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device without waiting for it."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


_views = Plugins(
    "osp.data.views",
    "osp.views",
    "view",
    only_class(View),  # type: ignore[type-abstract]  # the base itself is never taken
    helpers=("augmenter", "base", "image_ops"),
)


def available() -> list[str]:
    """Names of all views.

    >>> available()
    ['flip', 'plain', 'strong', 'weak']
    """
    return _views.names()


def base_name(view: str) -> str:
    """A view without the number at its end, which only asks for a draw of its own.

    >>> base_name("weak2"), base_name("strong")
    ('weak', 'strong')
    """
    return re.sub("[0-9]+$", "", view)


def find(view: str) -> type[View]:
    """The class of a view; UserError with a near miss where there is none of this name."""
    found = _views.get(base_name(view))
    if found is None:
        raise UserError(f"Unknown view {view!r}.{suggest(base_name(view), available())}")
    return found
