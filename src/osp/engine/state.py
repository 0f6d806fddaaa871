"""Everything of a run that changes, on disk and back: a run that was stopped goes on as if it had not been."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from osp.distributed import first, world
from osp.engine.optim import load_optimizer_tensors, optimizer_tensors
from osp.errors import UserError
from osp.recipe import explain
from osp.runs.checkpoint import load_checkpoint, load_state, prefixed, save_checkpoint, unprefixed
from osp.version import __version__

if TYPE_CHECKING:
    from osp.engine.loop import Loop
    from osp.runs.folder import RunFolder


class Standing(BaseModel):
    """Where a run stands: what the header of its checkpoint says first."""

    done: int = Field(ge=0, strict=True)
    images_seen: int = Field(ge=0, le=2**62, strict=True)
    seconds: float = Field(ge=0, allow_inf_nan=False)
    best: float = Field(ge=-1, le=100, allow_inf_nan=False)
    warnings: list[str]

    def warn(self, text: str) -> None:
        """Add a warning of the result, once."""
        if text not in self.warnings:
            self.warnings.append(text)


class CheckpointFacts(Standing):
    """What the header of a checkpoint must say."""

    tally: dict[str, int]
    activity: dict[str, int]
    identity: str | None
    versions: dict[str, str]
    threads: int | None = Field(None, ge=1)
    averaged_updates: int = Field(ge=0)
    precision: dict[str, Any]


CHECKPOINT_SECONDS = 60.0


class Checkpoints:
    """When a run is saved, and whether it can be.

    Only where it is `clean`: there is something new, and nothing but complete steps has happened, with their hooks,
    evaluations and lines in the log. A step or a hook that begins to change something ends that.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.clean = False
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether a checkpoint is due: by steps as asked, and by time."""
        every, longest = self._loop.plan.save_every, self._loop.plan.save_seconds
        by_steps = every is not None and self._loop.at.done % every == 0
        return by_steps or time.monotonic() - self._last > (CHECKPOINT_SECONDS if longest is None else longest)

    def save(self) -> None:
        self.clean = False  # also where writing fails: what failed once is not tried again on the way out
        save_run(self._loop)
        self._last = time.monotonic()

    def rescue(self) -> None:
        """Save what an exception would lose. Of several processes each may have stopped elsewhere: then nothing."""
        if self.clean and world() == 1:
            with contextlib.suppress(UserError):  # the exception that led here says more
                self.save()


def save_run(loop: Loop) -> None:
    """Write all that the run needs to go on; the checkpoint before it is kept until the next one.

    Every process calls this, and the first one writes: they all have the same weights and the same state.
    """
    loop.tally.share()
    loop.activity.share()
    if not first():
        return
    tensors = prefixed("method", loop.method.state_dict())
    unfitted = "method/own_score." if loop.method.own_score.fitted else None  # a score that is fitted at the end is NaN
    trained = [each for name, each in tensors.items() if unfitted is None or not name.startswith(unfitted)]
    if not all(value.isfinite().all() for value in trained if value.is_floating_point()):
        return  # a broken state must not take a good one's place; the loss will say so at the next line of the log
    tensors |= prefixed("optimizer", optimizer_tensors(loop.optimizer.optimizer))
    for name, optimizer in loop.extra.items():
        tensors |= prefixed(f"extra/{name}", optimizer_tensors(optimizer))
    tensors |= prefixed("averaged", {str(k): tensor for k, tensor in enumerate(loop.averaged.average)})
    tensors |= prefixed("streams", loop.feed.state())
    tensors |= prefixed("tally", loop.tally.sums) | prefixed("activity", loop.activity.sums)
    meta = {
        **loop.at.model_dump(),
        "tally": loop.tally.counts,
        "activity": loop.activity.counts,
        "identity": loop.plan.identity(),
        "versions": {**loop.plan.versions, **current_versions()},
        "threads": torch.get_num_threads(),
        "averaged_updates": loop.averaged.updates,
        "precision": loop.fabric.strategy.precision.state_dict(),  # the loss scaling of 16-mixed
    }
    save_checkpoint(loop.folder.last, tensors, meta, earlier=loop.folder.previous)


def current_versions() -> dict[str, str]:
    return {"osp": __version__, "torch": str(torch.__version__)}


def changes(versions: Mapping[str, str], threads: int | None, device: str) -> list[str]:
    """What differs from the process that wrote a checkpoint and may change the bits of the result."""
    found, threads_now = [], torch.get_num_threads()
    for name, now in current_versions().items():
        if versions.get(name, now) != now:
            found.append(f"it was begun with {name} {versions[name]} and goes on with {now}")
    if device == "cpu" and threads not in (None, threads_now):
        found.append(f"it was begun with {threads} threads and goes on with {threads_now}")
    return [f"{text}: the result may differ in its last bits from that of a run never stopped" for text in found]


def has_checkpoint(folder: RunFolder) -> bool:
    return folder.last.exists() or folder.previous.exists()


def check_meta(meta: Mapping[str, Any], where: object) -> CheckpointFacts:
    """What a header says; refused are fields that are missing or of another kind."""
    try:
        return CheckpointFacts(**meta)
    except ValidationError as error:
        raise UserError(f"The checkpoint in {where} is damaged: {explain(error, CheckpointFacts, 'header')}") from None


def resume_run(loop: Loop) -> None:
    """Take up the last checkpoint, or the one before where that is missing or damaged.

    Every process reads it, however many wrote it.
    """
    folder, where, total = loop.folder, loop.folder.checkpoints, loop.timetable.total
    try:
        tensors, meta = load_checkpoint(folder.last)
    except UserError as damage:
        if not folder.previous.exists():
            raise
        tensors, meta = load_checkpoint(folder.previous)
        loop.records.display.say(f"{damage} Going on from the one before it.")
    facts = check_meta(meta, where)
    if facts.identity != loop.plan.identity():
        raise UserError(
            f"The checkpoint in {where} belongs to another plan: plan.yaml was changed, or the file comes from another "
            "run. Start a new run with another --out."
        )
    if facts.done > total:
        raise UserError(f"The checkpoint in {where} stands at step {facts.done} of {total}.")
    try:
        _take_up(loop, {name: tensor.to(loop.fabric.device) for name, tensor in tensors.items()}, facts)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
        raise UserError(f"The checkpoint in {where} is damaged: {error!r}") from None


def _take_up(loop: Loop, tensors: dict[str, Tensor], facts: CheckpointFacts) -> None:
    loop.at = Standing(**facts.model_dump())
    load_state(loop.method, unprefixed("method", tensors), loop.folder.last)
    for name, optimizer in loop.extra.items():
        load_optimizer_tensors(optimizer, unprefixed(f"extra/{name}", tensors))
    loop.averaged.updates = facts.averaged_updates
    for key, tensor in unprefixed("averaged", tensors).items():
        loop.averaged.average[int(key)].copy_(tensor)
    loop.fabric.strategy.precision.load_state_dict(facts.precision)
    loop.tally.restore(unprefixed("tally", tensors), facts.tally)
    loop.activity.restore(unprefixed("activity", tensors), facts.activity)
    for text in changes(facts.versions, facts.threads, loop.fabric.device.type):
        loop.records.display.say(f"Warning: {text}.")
        loop.at.warn(text)
    if first():
        loop.folder.rewind_metrics(loop.at.done)
    loop.reopen_stage(tensors)
