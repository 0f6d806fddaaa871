"""For Safe-Student, OTCT and the methods with one-vs-all heads: by hand on random images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from helpers import pools
from osp.engine.schedule import Timetable
from osp.methods import Method, Sample, Step, Task, get
from osp.nets import build_network

CLASSES, POOL, STEPS = 4, 40, 100


def build(name: str, num_classes: int = CLASSES, steps: int = STEPS, num_val: int = 12, **options: Any) -> Any:
    """A method on a network without batch norm, whose samples are independent, for grey images of 8x8."""
    torch.manual_seed(0)
    kind, shape = get(name), (1, 8, 8)
    task = Task(num_classes, shape, num_labeled=8, num_unlabeled=POOL, num_val=num_val, steps=steps)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    return kind(kind.Options.model_validate(options), build_network(encoder, shape, num_classes), task)


def images(n: int, seed: int) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def sample(n: int, views: str, seed: int, labeled: bool = False, num_classes: int = CLASSES) -> Sample:
    """`views` by name, parted by blanks; the classes of labeled images go round."""
    found = {view: images(n, 100 * seed + number) for number, view in enumerate(views.split())}
    return Sample(torch.arange(n) % POOL, found, torch.arange(n) % num_classes if labeled else None)


def step_in(method: Method, stage: str, progress: float = 0.5) -> Step:
    """A step of this stage of a run of 100 steps."""
    table = Timetable.make(method.stages(), STEPS, seed=0)
    number = [each.name for each in table.stages].index(stage)
    start = table.step(table.starts[number])
    return table.step(table.starts[number] + int(progress * start.stage_steps))


class FakePool(pools.FakePool):
    """Random images; validation images have these labels."""

    def __init__(self, truth: Tensor | None = None) -> None:
        super().__init__({"unlabeled": images(POOL, 7), "val": images(12, 8)}, {} if truth is None else {"val": truth})


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def learns(parameters: Any) -> bool:
    """Whether any of the parameters got a gradient that is not zero."""
    return any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in parameters)
