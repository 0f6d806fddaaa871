"""The numbers of a run while it runs: their means, lines of metrics.jsonl, the display, and trackers if any."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from osp.distributed import first, summed, world
from osp.engine.progress import Display, Silent
from osp.engine.trackers import Trackers
from osp.methods.base import Step
from osp.runs.folder import RunFolder

UNSEEN = ("lr", "images_seen")
"""Logged, but of no use on a terminal."""


class Records:
    """One place to which every number of a run goes. Of several processes the first one writes and speaks."""

    def __init__(self, folder: RunFolder, display: Display) -> None:
        self.folder, self.display = folder, display if first() else Silent()
        self.trackers = Trackers(self.display.say)

    def write(self, step: Step, done: int, kind: str, values: Mapping[str, float | None]) -> None:
        if not first():
            return
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self.folder.append_metrics({"step": done, "kind": kind, "stage": step.stage.name, **finite})
        shown = {name: value for name, value in finite.items() if name not in UNSEEN}
        self.display.values(done, step.stage.name, shown)
        self.trackers.write(done, kind, finite)

    def say(self, text: str) -> None:
        self.display.say(text)

    def close(self) -> None:
        self.display.end()


class Tally:
    """Running sums of named numbers on the device, read only when a line is due."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            if name in self.sums:
                self.sums[name] += value
            else:
                self.sums[name] = value.to(torch.float64 if value.device.type == "cpu" else torch.float32, copy=True)
            self.counts[name] = self.counts.get(name, 0) + 1

    def share(self) -> None:
        """Make the sums those of the global batch: the mean over the processes, everywhere the same."""
        if world() > 1 and self.sums:
            total = summed(torch.stack(list(self.sums.values()))) / world()
            self.sums = dict(zip(self.sums, total.unbind(), strict=True))

    def means(self) -> dict[str, float]:
        """The means since the last call."""
        result = {name: (total / self.counts[name]).item() for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return result

    def restore(self, sums: dict[str, Tensor], counts: dict[str, int]) -> None:
        self.sums, self.counts = {name: sums[name] for name in counts}, dict(counts)  # in the order of the counts
