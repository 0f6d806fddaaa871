"""From a view source to the batches of a stage: which images a step draws, and which views of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from osp.data.split import Split
from osp.data.stream import ShardStream, Stream
from osp.data.view_source import Draw, ViewSource
from osp.data.views import to_device
from osp.errors import UserError
from osp.methods.base import Batch, Part, Sample, Step, StreamSpec
from osp.runs.checkpoint import unprefixed


class Feed:
    """The parts of the data, and the streams that a stage draws from them."""

    def __init__(self, views: ViewSource, split: Split, seed: int, device: torch.device) -> None:
        self.views = views
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

    def open_streams(self, specs: dict[str, StreamSpec], world: int = 1) -> None:
        """The streams of a new stage, each drawing from its whole part."""
        self.specs, self.streams = specs, {}
        for name, spec in specs.items():
            size = len(self.index[spec.part])
            for part in ("labeled", "unlabeled") if spec.part == "joint" else (spec.part,):
                if len(self.index[part]) == 0:
                    raise UserError(f"The method draws from {part} images, but the split has none.")
            if spec.batch % world:
                raise UserError(
                    f"batch: {spec.batch} {name} images per step cannot be shared by "
                    f"{world} processes; set a multiple of {world}."
                )
            for view in spec.views:
                try:
                    self.views.check(view)
                except UserError as error:
                    raise UserError(f"The method's stream {name!r}: {error}") from error
            starts = self.shards_of(spec.part)
            self.streams[name] = (
                Stream(name, size, spec.batch, self.seed)
                if starts is None
                else ShardStream(name, size, spec.batch, self.seed, starts)
            )

    def shards_of(self, part: Part) -> np.ndarray | None:
        """Where the shards begin among the rows of a part; None for what is small or does not lie in shards."""
        if self.views.shards is None or part not in ("unlabeled", "joint"):
            return None
        known = 0 if part == "unlabeled" else len(self.index["labeled"])
        return known + np.searchsorted(self.index["unlabeled"], self.views.shards)

    def batch(self, step: Step) -> Batch:
        """This process's slice of the step's global batch."""
        return {name: self._sample(name, spec, step) for name, spec in self.specs.items()}

    def _sample(self, name: str, spec: StreamSpec, step: Step) -> Sample:
        rows = self.streams[name].rows(step.index, step.rank, step.world)
        draw = Draw(self.seed, step.index, name, spec.batch, step.rank, step.world)
        views = self.views.views(self.index[spec.part][rows], spec.views, draw)
        row_tensor = to_device(torch.from_numpy(rows), self.device)
        targets = self.targets.get(spec.part)
        return Sample(row_tensor, views, None if targets is None else targets[row_tensor])

    def state(self) -> dict[str, Tensor]:
        """The restrictions of the streams, for a checkpoint."""
        return {
            f"{name}/{key}": torch.from_numpy(value)
            for name, stream in self.streams.items()
            for key, value in stream.state().items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        for name, stream in self.streams.items():
            stream.load_state({key: value.cpu().numpy() for key, value in unprefixed(name, tensors).items()})
