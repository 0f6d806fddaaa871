"""From images on the host to batches of views on the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from osp.data.augment import Augmenter
from osp.data.gather import Images
from osp.data.split import Split
from osp.data.stream import Stream
from osp.engine.optim import AveragedWeights
from osp.errors import UserError
from osp.methods.base import Batch, Part, Sample, Step, StreamSpec
from osp.nets import as_tested
from osp.randomness import generator

POOL_BATCH = 256
"""Images a chunk in passes without gradient: past this, larger chunks are slower on two cores."""


class DeviceImages:
    """The same images, held on the device: batches are then gathered there, and nothing is copied during the run."""

    def __init__(self, images: Images, device: torch.device) -> None:
        self._all = torch.empty((len(images), *images.shape), dtype=torch.uint8, device=device)
        for first in range(0, len(images), COPY_CHUNK):
            rows = np.arange(first, min(first + COPY_CHUNK, len(images)))
            self._all[first : first + len(rows)] = images.take(rows).to(device)

    def take(self, indices: np.ndarray) -> Tensor:
        """The images at these indices, in this order."""
        index = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        if self._all.is_cuda:
            index = index.pin_memory()
        return self._all[index.to(self._all.device, non_blocking=True)]


COPY_CHUNK = 4096
DEVICE_SHARE = 0.4
"""Of the free memory of a CUDA device that images may take up."""


def on_device_if_it_fits(images: Images, device: torch.device) -> Images | DeviceImages:
    """The images on the device where they fit, so that no step waits for a copy; else on the host."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    return DeviceImages(images, device) if len(images) * int(np.prod(images.shape)) < DEVICE_SHARE * free else images


class Feed:
    """The parts of the data, the streams a stage draws from them, and full passes over a part."""

    def __init__(self, images: Images, split: Split, augmenter: Augmenter, seed: int, device: torch.device) -> None:
        self.images = on_device_if_it_fits(images, device)
        self.augmenter = augmenter
        self.seed = seed
        self.device = device
        self.index: dict[Part, np.ndarray] = {
            "labeled": split.labeled,
            "unlabeled": split.unlabeled,
            "joint": np.concatenate([split.labeled, split.unlabeled]),
            "val": split.val,
        }
        unknown = np.full(len(split.unlabeled), -1, dtype=np.int64)
        self.targets: dict[Part, Tensor] = {
            "labeled": torch.from_numpy(split.labeled_targets).to(device),
            "val": torch.from_numpy(split.val_targets).to(device),
            "joint": torch.from_numpy(np.concatenate([split.labeled_targets, unknown])).to(device),
        }
        self.specs: dict[str, StreamSpec] = {}
        self.streams: dict[str, Stream] = {}
        self.memory_format = torch.contiguous_format

    def open_streams(self, specs: dict[str, StreamSpec], world: int = 1) -> None:
        """The streams of a new stage, each drawing from its whole part."""
        self.specs, self.streams = specs, {}
        for name, spec in specs.items():
            size = len(self.index[spec.part])
            if size == 0:
                raise UserError(f"The method draws from {spec.part} images, but the split has none.")
            if spec.batch % world:
                raise UserError(f"batch: {spec.batch} {name} images a step cannot be shared by {world} processes.")
            self.streams[name] = Stream(name, size, spec.batch, self.seed)

    def batch(self, step: Step) -> Batch:
        """This process's slice of the step's global batch."""
        return {name: self._sample(name, spec, step) for name, spec in self.specs.items()}

    def _sample(self, name: str, spec: StreamSpec, step: Step) -> Sample:
        rows = self.streams[name].rows(step.index, step.rank, step.world)
        images = self.to_device(self.images.take(self.index[spec.part][rows]))
        row_tensor = self.to_device(torch.from_numpy(rows))
        views = {}
        for view in spec.views:
            draws = generator(self.seed, step.index, name, view)
            plan = self.augmenter.plan(view.rstrip("0123456789"), spec.batch, draws)[step.rank :: step.world]
            views[view] = self.augmenter.apply(images, plan).contiguous(memory_format=self.memory_format)
        targets = self.targets.get(spec.part)
        return Sample(row_tensor, views, None if targets is None else targets[row_tensor])

    def to_device(self, tensor: Tensor) -> Tensor:
        """To the device without waiting for it."""
        if self.device.type == "cuda" and not tensor.is_cuda:
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def plain(self, images: Tensor) -> Tensor:
        """The plain view of uint8 images, on the device: what the network is tested on."""
        return self.augmenter.normalize(self.to_device(images)).contiguous(memory_format=self.memory_format)

    def view(self, images: Tensor, view: str, draws: torch.Generator) -> Tensor:
        """A view of uint8 images, on the device."""
        return self.augmenter.view(self.to_device(images), view, draws).contiguous(memory_format=self.memory_format)

    def state(self) -> dict[str, Tensor]:
        """The restrictions of the streams, for a checkpoint."""
        return {
            f"{name}/{key}": torch.from_numpy(value)
            for name, stream in self.streams.items()
            for key, value in stream.state().items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        for name, stream in self.streams.items():
            stream.load_state(
                {k.removeprefix(f"{name}/"): v.cpu().numpy() for k, v in tensors.items() if k.startswith(f"{name}/")}
            )


class FeedPool:
    """Full passes over a part of the data, as the hooks of a method see them (`osp.methods.Pool`)."""

    def __init__(
        self,
        method: nn.Module,
        feed: Feed,
        next_step: int,
        averaged: AveragedWeights | None,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._method, self._feed, self._next_step = method, feed, next_step
        self._averaged, self._autocast = averaged, autocast
        self.messages: list[str] = []

    def map(
        self,
        function: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
        part: Part = "unlabeled",
        rows: Tensor | None = None,
        ema: bool = False,
        view: str = "plain",
        train: bool = False,
    ) -> tuple[Tensor, ...]:
        index = self._feed.index[part]
        if rows is not None:
            index = index[rows.cpu().numpy()]
        with self._averaged.applied() if ema and self._averaged is not None else nullcontext():
            draws = generator(self._feed.seed, self._next_step, "pool", part, view)
            results = map_images(function, self._method, self._feed, index, self._autocast, view, draws, train)
        if not all(value.isfinite().all() for value in results):
            raise UserError(
                f"The network's outputs are no longer numbers at step {self._next_step}. Try a smaller learning rate."
            )
        return results

    def labels(self, part: Literal["labeled", "val"]) -> Tensor:
        return self._feed.targets[part]

    def restrict(self, stream: str, rows: Tensor | None) -> None:
        if rows is not None and rows.numel() == 0:
            self.messages.append(f"nothing was kept for the {stream} stream; it keeps what it had")
            return
        self._feed.streams[stream].restrict(None if rows is None else rows.cpu().numpy(), self._next_step)

    def restart_average(self, prefix: str = "") -> None:
        if self._averaged is not None:
            self._averaged.restart(prefix)

    def warn(self, message: str) -> None:
        self.messages.append(message)


def map_images(
    function: Callable[[Tensor], Tensor | tuple[Tensor, ...]],
    module: nn.Module,
    feed: Feed,
    index: np.ndarray,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    view: str = "plain",
    draws: torch.Generator | None = None,
    train: bool = False,
) -> tuple[Tensor, ...]:
    """Apply a function to images by index in chunks of about one size: no gradient, results joined on the CPU.

    In eval mode, unless `train` leaves the module as it is; `draws` are for a view other than the plain one.
    """
    collected: tuple[Tensor, ...] = ()
    bounds = np.linspace(0, len(index), max(-(-len(index) // POOL_BATCH), 1) + 1).astype(np.int64)
    with torch.no_grad() if train else as_tested(module), autocast():
        # No images at all go through the function too: it alone knows the shapes of what it gives.
        for first, end in itertools.pairwise(bounds.tolist()):
            images = feed.images.take(index[first:end])
            result = function(feed.plain(images) if draws is None else feed.view(images, view, draws))
            results = result if isinstance(result, tuple) else (result,)
            # One tensor for all chunks: thousands of small ones would keep the allocator from giving back memory.
            if not collected:
                collected = tuple(each.new_empty((len(index), *each.shape[1:]), device="cpu") for each in results)
            for whole, value in zip(collected, results, strict=True):
                if value.shape != (len(images), *whole.shape[1:]) or value.dtype != whole.dtype:
                    given, wanted = f"{tuple(value.shape)} {value.dtype}", f"{tuple(whole.shape[1:])} {whole.dtype}"
                    raise ValueError(f"the function gave {given} for {len(images)} images; wanted is {wanted} for each")
                whole[first : first + len(images)] = value
    return collected
