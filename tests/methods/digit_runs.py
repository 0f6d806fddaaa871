"""Runs of a second on the embedded digits, and methods by hand on random images."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osp import Recipe
from osp.engine.checkpoint import load_checkpoint
from osp.engine.folder import RunFolder
from osp.engine.train import Run, train
from osp.methods.base import Batch, Sample, Stage, Step, Task
from osp.methods.t2t import T2T
from osp.nets import Network

NUM_CLASSES, POOL = 4, 40


def short(method: str, steps: int = 40, **fields: Any) -> Recipe:
    """Small batches, few steps, and everything that wants confidence satisfied with little of it."""
    options = {"batch": 8, "mu": 2, "rotation_batch": 16, **fields.pop("options", {})}
    return Recipe(
        **{
            "method": method,
            "steps": steps,
            "options": options,
            "scale": "demo",
            "threads": 1,
            "log_every": 1,
            **fields,
        }
    )


def run(recipe: Recipe, out: Path, **more: Any) -> Run:
    """`train` without its picture, leaving torch's threads as they were."""
    threads = torch.get_num_threads()
    try:
        return train(recipe, out, **more)
    finally:
        torch.set_num_threads(threads)


def logged(result: Run, stage: str = "finetune", kind: str = "train") -> list[dict[str, Any]]:
    lines = RunFolder(result.path).read_metrics()
    return [line for line in lines if line["kind"] == kind and line["stage"] == stage]


def state(path: Path) -> dict[str, Tensor]:
    return load_checkpoint(RunFolder(path).last)[0]


class Stopper:
    """A display that stops the run, as Ctrl-C would, once a step is done."""

    def __init__(self, at: int) -> None:
        self.at = at

    def begin(self, total: int, done: int) -> None: ...
    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...

    def step(self, done: int, stage: str) -> None:
        if done == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def by_hand(kind: type[T2T], **options: Any) -> T2T:
    """A method of 4 classes and a pool of 40 on a network without batch norm, whose samples are independent."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    task = Task(NUM_CLASSES, (1, 8, 8), num_labeled=8, num_unlabeled=POOL, num_val=4)
    return kind(kind.Options(**options), Network(encoder, 16, NUM_CLASSES), task)


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
        "rotation": Sample(rows(12, POOL), {"weak": images(12)}),
    }


class FakePool:
    """A pool whose images are random; remembers what the streams were restricted to."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(2)
        self.images = torch.randn(POOL, 1, 8, 8, generator=draws)
        self.labeled = torch.randn(8, 1, 8, 8, generator=draws)
        self.restricted: dict[str, Tensor | None] = {}

    def map(self, function: Any, part: str = "unlabeled", rows: Tensor | None = None, *others: Any, **more: Any) -> Any:
        images = self.labeled if part == "labeled" else self.images
        images = images if rows is None else images[rows]
        with torch.no_grad():
            chunks = [function(chunk) for chunk in torch.tensor_split(images, 3)]
        columns = zip(*(each if isinstance(each, tuple) else (each,) for each in chunks), strict=True)
        return tuple(torch.cat(column) for column in columns)

    def labels(self, part: str) -> Tensor:
        raise AssertionError("these methods ask for no labels")

    def restrict(self, stream: str, rows: Tensor | None) -> None:
        self.restricted[stream] = rows

    def restart_average(self, prefix: str = "") -> None: ...
    def warn(self, message: str) -> None: ...
