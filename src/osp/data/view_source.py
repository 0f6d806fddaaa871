"""Where batches of views come from: pixels that are augmented, or stored features of a frozen backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from osp.data.images import Images
from osp.data.views import Augmenter, parsed, to_device
from osp.errors import UserError, suggest
from osp.randomness import generator

COPY_CHUNK = 4096
DEVICE_SHARE = 0.4  # of the free memory of a CUDA device that images may take up


@dataclass(frozen=True)
class Draw:
    """The random numbers of one stream's batch: a function of (seed, step, stream), made for the global batch."""

    seed: int
    step: int
    stream: str
    batch: int  # size of the global batch
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


class PixelViews:
    """The views of images; `channels_last` is the memory format, for a network that is laid out so too."""

    def __init__(
        self, images: Images, augmenter: Augmenter, device: torch.device, *, channels_last: bool = False
    ) -> None:
        self.images = on_device_if_it_fits(images, device)
        self.shape: tuple[int, ...] = images.shape
        self.shards = images.shards
        self.augmenter, self.device = augmenter, device
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def check(self, view: str) -> None:
        self.augmenter.view(view)

    def views(self, index: np.ndarray, names: Sequence[str], draw: Draw) -> dict[str, Tensor]:
        images = to_device(self.images.take(index), self.device)
        made = {}
        for name in names:
            plan = self.augmenter.plan(name, draw.batch, draw.generator(name))[draw.mine]
            made[name] = self.augmenter.apply(images, plan).contiguous(memory_format=self.memory_format)
        return made

    def plain(self, index: np.ndarray) -> Tensor:
        images = to_device(self.images.take(index), self.device)
        return self.augmenter.normalize(images).contiguous(memory_format=self.memory_format)


class DeviceImages:
    """The same images, held on the device: batches are then gathered there, and nothing is copied during the run."""

    def __init__(self, images: Images, device: torch.device) -> None:
        self._all = torch.empty((len(images), *images.shape), dtype=torch.uint8, device=device)
        for first in range(0, len(images), COPY_CHUNK):
            rows = np.arange(first, min(first + COPY_CHUNK, len(images)))
            self._all[first : first + len(rows)] = images.take(rows).to(device)

    def take(self, indices: np.ndarray) -> Tensor:
        index = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return self._all[to_device(index, self._all.device)]


def on_device_if_it_fits(images: Images, device: torch.device) -> Images | DeviceImages:
    """The images on the device where they fit, so that no step waits for a copy; else on the host."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    return DeviceImages(images, device) if len(images) * int(np.prod(images.shape)) < DEVICE_SHARE * free else images


class FeatureViews:
    """The views of images whose features are stored for some views of each (`ViewSource`).

    `stored` has one N×D array of half or single precision, in memory or memory-mapped, for each of `plain`, `flip` (all
    mirrored), `weak`, `weak2`, `strong`, `strong2`, or as many of them as were made. A step's `weak` is, image by
    image, one of the stored weak views, drawn again each step; `weak2` is another one, never the same. `flip` is the
    plain or the mirrored image, as it is for pixels.

    >>> stored = {"plain": np.zeros((5, 3), np.float16), "weak": np.ones((5, 3), np.float16)}
    >>> source = FeatureViews(stored, torch.device("cpu"))
    >>> source.views(np.array([0, 4]), ["weak"], Draw(seed=0, step=0, stream="labeled", batch=2))["weak"]
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """

    def __init__(self, stored: Mapping[str, np.ndarray], device: torch.device) -> None:
        if "plain" not in stored:
            listed = ", ".join(sorted(stored)) or "none"
            raise UserError(f"The stored features lack the view 'plain'; there are: {listed}.")
        first = stored["plain"]
        for name, array in stored.items():
            if array.ndim != 2 or array.dtype not in (np.float16, np.float32) or array.shape != first.shape:
                raise UserError(
                    f"The stored features of the view {name!r} are {array.dtype} {array.shape}; wanted are half or "
                    f"single precision, one row per image, as many as for 'plain' ({first.shape})."
                )
        # A memory map's own indexing makes a memory map of each result; a plain view of the same memory does not.
        self._stored = {name: array.view(np.ndarray) for name, array in stored.items()}
        self.shape: tuple[int, ...] = (first.shape[1],)
        self.device = device
        self.shards: np.ndarray | None = None  # one array is read at any place alike

    def check(self, view: str) -> None:
        self._choices(view)

    def views(self, index: np.ndarray, names: Sequence[str], draw: Draw) -> dict[str, Tensor]:
        made = {}
        for name in names:
            choices, number = self._choices(name)
            # One order of the stored views per image, the same for `weak` and `weak2`: they take its first and second.
            base, _ = parsed(name)
            order = torch.rand((draw.batch, len(choices)), generator=draw.generator(base)).argsort(dim=1)
            made[name] = self._take(choices, order[draw.mine, number].numpy(), index)
        return made

    def plain(self, index: np.ndarray) -> Tensor:
        return self._take(["plain"], np.zeros(len(index), np.int64), index)

    def _choices(self, view: str) -> tuple[list[str], int]:
        """The stored views that a view is drawn from, and which of the drawn order it takes."""
        base, number = parsed(view)
        stored = sorted((name for name in self._stored if parsed(name)[0] == base), key=lambda name: parsed(name)[1])
        if not stored:
            raise UserError(f"Features of the view {view!r} are not stored.{suggest(base, self._stored)}")
        choices = ["plain", *stored] if base == "flip" else stored
        if number >= len(choices):
            raise UserError(
                f"The view {view!r} asks for {number + 1} different draws, but features are stored for "
                f"{len(choices)}: {', '.join(choices)}."
            )
        return choices, number

    def _take(self, choices: Sequence[str], chosen: np.ndarray, index: np.ndarray) -> Tensor:
        """Row i is that of image index[i] in the stored view choices[chosen[i]], in single precision."""
        out = np.empty((len(index), *self.shape), np.float32)
        for number, name in enumerate(choices):
            rows = np.flatnonzero(chosen == number)
            out[rows] = self._stored[name][index[rows]]
        return to_device(torch.from_numpy(out), self.device)
