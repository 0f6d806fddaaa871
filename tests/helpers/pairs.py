"""The same runs in one process and in two that share them: what both leave behind."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from osp import Recipe, distributed
from osp.engine.data import open_data
from osp.engine.devices import open_fabric, process_settings
from osp.engine.loop import Loop
from osp.engine.progress import Display
from osp.engine.records import Records
from osp.engine.train import build_loop
from osp.recipe import make_plan
from osp.runs.folder import RunFolder

PROCESSES = 2
DATA = {"data": "digits", "unlabeled": 150, "labels_per_class": 4, "val_per_class": 4, "seed": 3}
MACHINE = {"scale": "demo", "device": "cpu", "threads": 1, "log_every": 1}

Case = Mapping[str, Any]
"""Fields of a recipe."""


class Smooth(nn.Module):
    """A small encoder with batch norms and without kinks.

    Where a unit lies at the kink of a ReLU, rounding decides on which side, and the difference that it makes to a step
    is far above rounding: of a network with a hundred thousand of them one does so every few steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def in_two(function: Callable[..., None], *arguments: Any) -> Any:
    """Start `function(*arguments)` in two processes that know each other; the result has `join`."""
    return spawn(_joined, (free_port(), function, arguments), nprocs=PROCESSES, join=False)  # type: ignore[no-untyped-call]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _joined(number: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(PROCESSES), "LOCAL_WORLD_SIZE": str(PROCESSES)}
    os.environ |= {"LOCAL_RANK": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with distributed.joined():
        function(*arguments)
    # As `osp` itself ends such a process: a thread of gloo or autograd may end an interpreter that goes down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def wait_for(both: Any) -> None:
    """Until both have ended; what one of them raised is raised here."""
    while not both.join():
        pass


def train_cases(folder: Path, cases: Mapping[str, Case]) -> None:
    """Run each case to its end, without the final test, and leave its state in `folder/RANK/name.pt`.

    A case with `first` ends after so many steps, within its first stage.
    """
    for name, case in cases.items():
        loop = loop_of(folder / name, {key: value for key, value in case.items() if key != "first"})
        if "first" in case:
            loop.begin_stage(loop.timetable.step(0))
            for index in range(case["first"]):
                loop.advance(loop.timetable.step(index))
        else:
            loop.run()
        place = folder / str(distributed.rank()) / f"{name}.pt"
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state_of(loop), place)


def loop_of(folder: Path, case: Case) -> Loop:
    """The loop of a recipe on digits, with a folder of its own for each case."""
    plan = make_plan(Recipe(**{**MACHINE, **DATA, "eval_every": case["steps"], **case}), custom_network=True)
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    with process_settings(plan):
        torch.set_num_threads(1)
        torch.manual_seed(1)
        return build_loop(plan, open_data(plan), run, open_fabric(plan), Records(run, Display()), Smooth())


def state_of(loop: Loop) -> dict[str, Tensor]:
    """Weights, buffers, averaged weights and what the streams draw from."""
    return {
        **{name: value.clone() for name, value in loop.method.state_dict().items()},
        **{f"averaged {number}": value for number, value in enumerate(loop.averaged.average)},
        **{f"stream {name}": value for name, value in loop.feed.state().items()},
    }
