"""Training runs in tests, ways to stop them, and what is left of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osp import Recipe
from osp.engine.progress import Display
from osp.engine.train import train
from osp.runs.checkpoint import load_checkpoint
from osp.runs.folder import RunFolder
from osp.runs.run import Run


def run(recipe: Recipe, out: Path, **more: Any) -> Run:
    """`train`, leaving torch's threads as they were."""
    threads = torch.get_num_threads()
    try:
        return train(recipe, out, **more)
    finally:
        torch.set_num_threads(threads)


class Recorder(Display):
    """A display that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class Stopper(Recorder):
    """Sends a signal to this very process once a step is done; without another choice as Ctrl-C would."""

    def __init__(self, at: int, signal_number: int = signal.SIGINT) -> None:
        super().__init__()
        self.at, self.signal_number = at, signal_number

    def step(self, done: int, stage: str) -> None:
        if done == self.at:
            os.kill(os.getpid(), self.signal_number)


def model(path: Path) -> dict[str, Tensor]:
    """The tensors of a run's trained model."""
    return load_checkpoint(RunFolder(path).model)[0]


def weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a run's last checkpoint."""
    return load_checkpoint(RunFolder(path).last)[0]
