"""Everything of a run that changes, on disk and back: a run that was stopped goes on as if it had not been."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from osp.distributed import first
from osp.engine.checkpoint import load_checkpoint, load_state, prefixed, save_checkpoint, unprefixed
from osp.engine.optim import load_optimizer_tensors, optimizer_tensors
from osp.engine.tally import Tally
from osp.errors import UserError

if TYPE_CHECKING:
    from osp.engine.loop import Loop
    from osp.runs.folder import RunFolder


@dataclass
class Standing:
    """Where a run stands."""

    done: int = 0
    images_seen: int = 0
    seconds: float = 0.0
    best: float = -1.0
    warnings: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    """Since the last line of the log."""
    activity: Tally = field(default_factory=Tally)
    """Of the method's mechanism, over the whole run."""

    def meta(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "images_seen": self.images_seen,
            "seconds": self.seconds,
            "best": self.best,
            "warnings": self.warnings,
            "tally": self.tally.counts,
            "activity": self.activity.counts,
        }


def save_run(loop: Loop) -> None:
    """Write all that the run needs to go on; the checkpoint before it is kept until the next one.

    Every process calls this, and the first one writes: they all have the same weights and the same state.
    """
    loop.at.tally.share()
    loop.at.activity.share()
    if not first():
        return
    tensors = prefixed("method", loop.method.state_dict())
    if not all(value.isfinite().all() for value in tensors.values() if value.is_floating_point()):
        return  # a broken state must not take a good one's place; the loss will say so at the next line of the log
    tensors |= prefixed("optimizer", optimizer_tensors(loop.optimizer.optimizer))
    for name, optimizer in loop.extra.items():
        tensors |= prefixed(f"extra/{name}", optimizer_tensors(optimizer.optimizer))
    if loop.averaged is not None:
        tensors |= prefixed("averaged", {str(k): tensor for k, tensor in enumerate(loop.averaged.average)})
    tensors |= prefixed("streams", loop.feed.state())
    tensors |= prefixed("tally", loop.at.tally.sums) | prefixed("activity", loop.at.activity.sums)
    meta = {
        **loop.at.meta(),
        "identity": loop.plan.identity(),
        "versions": loop.plan.versions,
        "averaged_updates": loop.averaged.updates if loop.averaged is not None else 0,
        "precision": loop.fabric.strategy.precision.state_dict(),  # the loss scaling of 16-mixed
    }
    save_checkpoint(loop.folder.last, tensors, meta, earlier=loop.folder.previous)


def has_checkpoint(folder: RunFolder) -> bool:
    return folder.last.exists() or folder.previous.exists()


def read_newest(folder: RunFolder) -> tuple[dict[str, Tensor], dict[str, Any], str | None]:
    """The last checkpoint, or the one before where the last is missing or damaged, and what to say about that."""
    try:
        return (*load_checkpoint(folder.last), None)
    except UserError as damage:
        if not folder.previous.exists():
            raise
        tensors, meta = load_checkpoint(folder.previous)
        return tensors, meta, f"{damage} Going on from the one before it."


def resume_run(loop: Loop) -> None:
    """Take up the newest good checkpoint; every process reads it, however many wrote it."""
    tensors, meta, trouble = read_newest(loop.folder)
    if trouble is not None:
        loop.records.say(trouble)
    try:
        if meta["identity"] != loop.plan.identity():
            raise UserError(
                f"The checkpoint in {loop.folder.checkpoints} belongs to another plan: plan.yaml was changed, or the "
                "file comes from another run. Start a new run with another --out."
            )
        _take_up(loop, {name: tensor.to(loop.fabric.device) for name, tensor in tensors.items()}, meta)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f"The checkpoint in {loop.folder.checkpoints} is damaged: {error!r}") from None


def _take_up(loop: Loop, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    done = meta["done"]
    if type(done) is not int or not 0 <= done <= loop.timetable.total:
        raise UserError(f"The checkpoint in {loop.folder.checkpoints} stands at step {done} of {loop.timetable.total}.")
    load_state(loop.method, unprefixed("method", tensors), loop.folder.last)
    loop.at.done, loop.at.images_seen, loop.at.seconds = done, meta["images_seen"], meta["seconds"]
    loop.at.best, loop.at.warnings = meta["best"], meta["warnings"]
    for name, optimizer in loop.extra.items():
        load_optimizer_tensors(optimizer.optimizer, unprefixed(f"extra/{name}", tensors))
    if loop.averaged is not None:
        loop.averaged.updates = meta["averaged_updates"]
        for key, tensor in unprefixed("averaged", tensors).items():
            with torch.no_grad():
                loop.averaged.average[int(key)].copy_(tensor)
    loop.fabric.strategy.precision.load_state_dict(meta["precision"])
    loop.at.tally.restore(unprefixed("tally", tensors), meta["tally"])
    loop.at.activity.restore(unprefixed("activity", tensors), meta["activity"])
    if first():
        loop.folder.rewind_metrics(done)
    loop.saved = tensors
