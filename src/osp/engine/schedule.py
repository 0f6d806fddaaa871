"""Learning rates over a stage, and the steps of each stage."""

from __future__ import annotations

import math
from dataclasses import dataclass

from osp.errors import UserError
from osp.methods.base import Stage, Step


def learning_rate(stage: Stage, stage_step: int, stage_steps: int) -> float:
    """The rate of one step.

    cosine-7/16: lr · cos(7πt / 16T), ending at 0.195 lr (FixMatch); cosine: lr · (1 + cos(πt / T)) / 2;
    steps: lr · factor^(number of drops passed). During the stage's warm-up that rate rises linearly to its value.

    >>> stage = Stage(lr=1.0, schedule="steps", drops=(0.5, 0.75), drop_factor=0.1)
    >>> [round(learning_rate(stage, t, 4), 3) for t in range(4)]
    [1.0, 1.0, 0.1, 0.01]
    """
    progress = stage_step / stage_steps
    return _scheduled(stage, progress) * min(1.0, (stage_step + 1) / max(stage.warmup * stage_steps, 1))


def _scheduled(stage: Stage, progress: float) -> float:
    if stage.schedule == "cosine-7/16":
        return stage.lr * math.cos(7 * math.pi * progress / 16)
    if stage.schedule == "cosine":
        return stage.lr * 0.5 * (1 + math.cos(math.pi * progress))
    if stage.schedule == "steps":
        return stage.lr * stage.drop_factor ** sum(progress >= drop for drop in stage.drops)
    return stage.lr


@dataclass(frozen=True)
class Timetable:
    """Which stage each step belongs to."""

    stages: tuple[Stage, ...]
    starts: tuple[int, ...]
    total: int
    seed: int
    rank: int = 0
    world: int = 1

    @classmethod
    def make(cls, stages: list[Stage], total: int, seed: int, rank: int = 0, world: int = 1) -> Timetable:
        """Cut the run by the stages' shares; every stage gets at least one step."""
        if total < len(stages):
            raise UserError(
                f"steps: {total} is too few; the method has {len(stages)} stages and needs a step for each."
            )
        shares = [stage.share for stage in stages]
        bounds = [round(total * sum(shares[:k]) / sum(shares)) for k in range(len(stages))]
        for k in range(1, len(bounds)):
            bounds[k] = max(bounds[k], bounds[k - 1] + 1)
        for k in reversed(range(len(bounds))):
            bounds[k] = min(bounds[k], total - (len(bounds) - k))
        return cls(tuple(stages), tuple(bounds), total, seed, rank, world)

    def rate(self, step: Step) -> float:
        """The learning rate of a step; stages that continue one another share one schedule, that of the first."""
        first, last = step.stage_index, step.stage_index
        while self.stages[first].continues and first > 0:
            first -= 1
        while last + 1 < len(self.stages) and self.stages[last + 1].continues:
            last += 1
        start, end = self.starts[first], (*self.starts[1:], self.total)[last]
        return learning_rate(self.stages[first], step.index - start, end - start)

    def step(self, index: int) -> Step:
        """Where step `index` stands."""
        stage_index = max(k for k, start in enumerate(self.starts) if start <= index)
        ends = (*self.starts[1:], self.total)
        start = self.starts[stage_index]
        return Step(
            index=index,
            total=self.total,
            stage=self.stages[stage_index],
            stage_index=stage_index,
            stage_step=index - start,
            stage_steps=ends[stage_index] - start,
            seed=self.seed,
            rank=self.rank,
            world=self.world,
        )


def refreshes(step: Step) -> bool:
    """Whether the stage's refresh falls on this step: at k · share · length, rounded, for k = 0, 1, 2, ..."""
    share = step.stage.refresh
    return share is not None and share > 0 and step.falls_on(share)
