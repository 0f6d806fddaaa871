"""What a run says while it runs: lines of metrics.jsonl, the display, and trackers where they were asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from osp.distributed import first
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
