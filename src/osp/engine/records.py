"""The numbers of a run while it runs: their means, lines of metrics.jsonl, the display, and trackers if any."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from osp.distributed import first, summed, world
from osp.engine.progress import Display
from osp.engine.trackers import KINDS, QUIET, Tracker, named_in
from osp.errors import first_line
from osp.methods.base import Step
from osp.recipe import Plan
from osp.recipe.recipe import ONLINE
from osp.runs.folder import RunFolder

UNSEEN = ("lr", "images_seen")
"""Logged, but of no use on a terminal."""


class Records:
    """One place to which every number of a run goes. Of several processes the first one writes and speaks."""

    def __init__(self, folder: RunFolder, display: Display) -> None:
        self.folder, self.display = folder, display if first() else Display()
        self._trackers: dict[str, Tracker] = {}

    def write(self, step: Step, done: int, kind: str, values: Mapping[str, float | None]) -> None:
        if not first():
            return
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self.folder.append_metrics({"step": done, "kind": kind, "stage": step.stage.name, **finite})
        shown = {name: value for name, value in finite.items() if name not in UNSEEN}
        self.display.values(done, step.stage.name, shown)
        self._track(done, kind, finite)

    def write_result(self, done: int, result: Mapping[str, Any]) -> None:
        """Give the trackers the numbers of a result."""
        numbers = {k: float(v) for k, v in result.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        self._track(done, "result", numbers)

    def _track(self, done: int, kind: str, values: Mapping[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._dropped(name):
                tracker.write(done, {f"{kind}/{key}": value for key, value in values.items()})

    @contextmanager
    def tracked(self, plan: Plan) -> Iterator[None]:
        """Inside, the plan's trackers get every number, in the first process alone; closed whatever happens."""
        names = named_in(plan) if first() else []
        for key, value in QUIET.items() if names else ():
            os.environ.setdefault(key, value)
        for name in names:
            with self._dropped(name):
                self._trackers[name] = KINDS[name.removesuffix(ONLINE)](plan, self.folder, name.endswith(ONLINE))
        finished = False
        try:
            yield
            finished = True
        finally:
            for name in list(self._trackers):
                with self._dropped(name):
                    self._trackers.pop(name).close(finished)

    @contextmanager
    def _dropped(self, name: str) -> Iterator[None]:
        """A tracker that fails inside gets nothing more, and harms nothing."""
        try:
            yield
        except Exception as error:  # of whatever kind: a training must not end by its observer
            self._trackers.pop(name, None)
            self.display.say(f"{name} gets no more numbers ({first_line(error)}); metrics.jsonl has them all.")


class Tally:
    """Running sums of named numbers on the device, read only when a line is due."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            if name in self.sums:
                self.sums[name] += value
            else:
                self.sums[name] = value.to(torch.float64 if value.device.type == "cpu" else torch.float32, copy=True)
            self.counts[name] = self.counts.get(name, 0) + 1

    def share(self) -> None:
        """Make the sums those of the global batch: the mean over the processes, everywhere the same."""
        if world() > 1 and self.sums:
            devices = {each.device for each in self.sums.values()}  # a method may log what it drew on the CPU
            device = max(devices, key=lambda each: each.type != "cpu")
            total = summed(torch.stack([each.to(device) for each in self.sums.values()])) / world()
            self.sums = dict(zip(self.sums, total.unbind(), strict=True))

    def means(self) -> dict[str, float]:
        """The means since the last call."""
        result = {name: (total / self.counts[name]).item() for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return result

    def restore(self, sums: dict[str, Tensor], counts: dict[str, int]) -> None:
        self.sums, self.counts = {name: sums[name] for name in counts}, dict(counts)  # in the order of the counts
