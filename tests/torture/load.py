"""Long work in flat memory: predictions for many images, and many steps of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from osp.engine.train import train
from osp.photos.predict import open_run
from torture.trial import _largest
from torture.works import recipe

GROWTH = 64.0
"""Megabytes by which the second half of the work may exceed the first."""


def cases(base: Path, images: int, steps: int) -> Iterator[tuple[str, Callable[[], str]]]:
    base.mkdir(parents=True)
    yield f"predict {images:,} images", lambda: predict(base / "predict", images)
    yield f"train {steps:,} steps", lambda: training(base / "train", steps)


def predict(base: Path, count: int) -> str:
    """Stream predictions; the files are names of a few real ones, as a pile of that size would only fill the disk."""
    base.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for number in range(50):
        Image.fromarray(draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(base / f"{number}.jpg")
    train(recipe("supervised", 4), base / "run")
    model = open_run(base / "run")
    files = [str(base / f"{number % 50}.jpg") for number in range(count)]
    done, half = 0, 0.0
    for _ in model.predict(files):
        done += 1
        if done == count // 2:
            half = _largest()
    grown = _largest() - half
    print(f"  predict: {count:,} images, {half:.0f} MB at half, {grown:.1f} MB more at the end")
    return "" if done == count and grown < GROWTH else f"{done} predictions, {grown:.0f} MB more in the second half"


class Watch:
    """A display that notes memory and open files on the way."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, [(0, 0.0, 0)]

    def begin(self, total: int, done: int) -> None: ...
    def values(self, done: int, stage: str, values: object) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...

    def step(self, done: int, stage: str) -> None:
        if done % self.every == 0:
            with open("/proc/self/statm", encoding="ascii") as file:
                pages = int(file.read().split()[1])
            self.seen.append((done, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir("/proc/self/fd"))))


def training(base: Path, steps: int) -> str:
    """The slope of memory and of open files over the second half of a run."""
    watch = Watch(max(1, steps // 40))
    asked = recipe("osp", steps).changed(log_every=100, eval_every=max(1, steps // 10), save_every=max(1, steps // 10))
    train(asked, base, display=watch)
    late = np.array(watch.seen[len(watch.seen) // 2 :])
    memory, files = (float(np.polyfit(late[:, 0], late[:, column], 1)[0]) * 1000 for column in (1, 2))
    print(f"  train: {steps:,} steps, {memory:+.3f} MB and {files:+.4f} open files per 1,000 steps")
    flat = memory * steps / 1000 < GROWTH and abs(files) * steps / 1000 < 2
    return "" if flat else f"{memory=} {files=} per 1,000 steps"
