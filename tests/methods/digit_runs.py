"""Runs of a second on the embedded digits, and methods by hand on random images."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from helpers import pools
from osp import Recipe
from osp.methods.base import Batch, Sample, Stage, Step, Task
from osp.methods.t2t import T2T
from osp.nets import Network
from osp.runs.folder import RunFolder
from osp.runs.run import Run

NUM_CLASSES, POOL = 4, 40


def short(method: str, steps: int = 40, **fields: Any) -> Recipe:
    """Small batches, few steps, and everything that wants confidence satisfied with little of it."""
    options = {"batch": 8, "mu": 2, "pool_batch": 16, **fields.pop("options", {})}
    return Recipe(
        **{
            "method": method,
            "steps": steps,
            "options": options,
            "scale": "demo",
            "threads": 1,
            "log_every": 1,
            "eval_every": max(steps // 2, 1),
            **fields,
        }
    )


def logged(result: Run, stage: str = "finetune", kind: str = "train") -> list[dict[str, Any]]:
    lines = RunFolder(result.path).read_metrics()
    return [line for line in lines if line["kind"] == kind and line["stage"] == stage]


M = TypeVar("M", bound=T2T)
TASK = Task(NUM_CLASSES, (1, 8, 8), num_labeled=8, num_unlabeled=POOL, num_val=4)


def by_hand(kind: type[M], **options: Any) -> M:
    """A method of 4 classes and a pool of 40 on a network without batch norm, whose samples are independent."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    return kind(kind.Options(**options), Network(encoder, 16, NUM_CLASSES), TASK)


def with_batch_norm(kind: type[M], **options: Any) -> M:
    """The same on a network with batch norm, whose running statistics are far from those of any batch."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)
    assert norm.running_mean is not None
    norm.running_mean.fill_(0.3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), norm, nn.ReLU())
    return kind(kind.Options(**options), Network(encoder, 16, NUM_CLASSES), TASK)


def step_at(progress: float = 0.5) -> Step:
    stage = Stage(name="finetune")
    return Step(50, 100, stage, stage_index=1, stage_step=int(80 * progress), stage_steps=80, seed=0)


def batch() -> Batch:
    draws = torch.Generator().manual_seed(1)

    def images(n: int) -> Tensor:
        return torch.randn(n, 1, 8, 8, generator=draws)

    def rows(n: int, among: int) -> Tensor:
        return torch.randint(among, (n,), generator=draws)

    return {
        "labeled": Sample(rows(8, 8), {"weak": images(8)}, rows(8, NUM_CLASSES)),
        "unlabeled": Sample(rows(16, POOL), {"weak": images(16), "strong": images(16)}),
        "pool": Sample(rows(12, POOL), {"weak": images(12)}),
    }


class FakePool(pools.FakePool):
    """Random images, in three chunks; the labeled ones have the classes in turn."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(2)
        sizes = {"unlabeled": POOL, "labeled": 8, "val": 12}
        parts = {part: torch.randn(size, 1, 8, 8, generator=draws) for part, size in sizes.items()}
        super().__init__(parts, {"labeled": torch.arange(8) % NUM_CLASSES}, chunks=3)

    @property
    def labeled(self) -> Tensor:
        return self.parts["labeled"]


def refreshed(method: M, pool: FakePool, progress: float = 0.0) -> M:
    """The method after a refresh, in evaluation mode as in a run, and in training mode again."""
    method.eval()
    method.refresh(step_at(progress), pool)
    method.train()
    return method
