"""What a run says while it runs: lines of metrics.jsonl, the display, and TensorBoard where it was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from osp.distributed import first
from osp.engine.progress import Display, Silent
from osp.errors import UserError
from osp.methods.base import Step
from osp.runs.folder import RunFolder

UNSEEN = ("lr", "images_seen")
"""Logged, but of no use on a terminal."""


class Records:
    """One place to which every number of a run goes. Of several processes the first one writes and speaks."""

    def __init__(self, folder: RunFolder, display: Display, tensorboard: bool = False) -> None:
        self.folder, self.display = folder, display if first() else Silent()
        self._writer = tensorboard_writer(folder) if tensorboard and first() else None

    def write(self, step: Step, done: int, kind: str, values: Mapping[str, float | None]) -> None:
        if not first():
            return
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self.folder.append_metrics({"step": done, "kind": kind, "stage": step.stage.name, **finite})
        shown = {name: value for name, value in finite.items() if name not in UNSEEN}
        self.display.values(done, step.stage.name, shown)
        if self._writer is not None:
            for name, value in finite.items():
                self._writer.add_scalar(f"{kind}/{name}", value, done)

    def say(self, text: str) -> None:
        self.display.say(text)

    def close(self) -> None:
        self.display.end()
        if self._writer is not None:
            self._writer.close()


def tensorboard_writer(folder: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("tensorboard: the extra is not installed; run `pip install 'osp[tensorboard]'`.") from None
    return SummaryWriter(str(folder.path / "tensorboard"))
