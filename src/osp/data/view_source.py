"""Where batches of views come from: pixels that are augmented, or stored features of a frozen backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from osp.randomness import generator


@dataclass(frozen=True)
class Draw:
    """The random numbers of one stream's batch: a function of (seed, step, stream), made for the global batch."""

    seed: int
    step: int
    stream: str
    batch: int
    """Size of the global batch."""
    rank: int = 0
    world: int = 1

    def generator(self, view: str) -> torch.Generator:
        """A CPU generator for the draws of a view."""
        return generator(self.seed, self.step, self.stream, view)

    @property
    def mine(self) -> slice:
        """This process's rows of the global batch."""
        return slice(self.rank, None, self.world)


class ViewSource(Protocol):
    """Gives the views of images by their numbers, as float32 tensors on the device."""

    shape: tuple[int, ...]
    """Of one view: channels, height and width of pixels, or (D,) for stored features. What needs pixels asks this."""
    device: torch.device
    shards: np.ndarray | None
    """The first image of each piece that is best read at a stretch; None where it makes no difference."""

    def check(self, view: str) -> None:
        """Raise UserError, with a near miss, where the source cannot give this view."""

    def views(self, index: np.ndarray, names: Sequence[str], draw: Draw) -> dict[str, Tensor]:
        """These views of the images at `index`, which are this process's rows of the batch that `draw` is for."""

    def plain(self, index: np.ndarray) -> Tensor:
        """The plain view of the images at `index`: what the network is tested on."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device without waiting for it."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
