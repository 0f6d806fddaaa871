"""What a run shows while it runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0
"""At most one plain line in this many seconds, evaluations aside."""


class Display(Protocol):
    """What the loop tells while it runs."""

    def begin(self, total: int, done: int) -> None: ...
    def step(self, done: int, stage: str) -> None: ...
    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...


class Silent:
    """For use from Python."""

    def begin(self, total: int, done: int) -> None: ...
    def step(self, done: int, stage: str) -> None: ...
    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...


class Live:
    """A bar with time left and, under it, the latest losses, activity and accuracy."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._latest: dict[str, float] = {}
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("·"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            TextColumn("[cyan]{task.fields[latest]}"),
            console=console,
            speed_estimate_period=60,
        )

    def begin(self, total: int, done: int) -> None:
        self._bar.start()
        self._task = self._bar.add_task("start", total=total, completed=done, latest="")

    def step(self, done: int, stage: str) -> None:
        self._bar.update(self._task, completed=done, description=stage)

    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None:
        self._latest.update(values)
        self._bar.update(self._task, latest=brief(self._latest))

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)

    def end(self) -> None:
        self._bar.stop()


class Plain:
    """Lines for logs and pipes."""

    def __init__(self) -> None:
        self._last = 0.0

    def begin(self, total: int, done: int) -> None:
        self._total, self._first, self._started = total, done, time.monotonic()

    def step(self, done: int, stage: str) -> None:
        pass

    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS and "val_accuracy" not in values and done < self._total:
            return
        self._last = now
        rate = (done - self._first) / max(now - self._started, 1e-9)
        left = (self._total - done) / rate if rate > 0 else 0.0
        self.say(f"{stage} {done}/{self._total} · {duration(left)} left · {brief(values)}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        pass


def display_for_terminal() -> Display:
    console = Console(stderr=True)
    return Live(console) if console.is_terminal else Plain()


def brief(values: Mapping[str, float]) -> str:
    """`loss 0.412 · val_accuracy 98.3`."""
    return " · ".join(f"{name} {value:.4g}" for name, value in values.items())


def duration(seconds: float) -> str:
    """
    >>> duration(5), duration(65), duration(7265)
    ('5 s', '1:05', '2:01:05')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


@contextmanager
def loading_bar() -> Iterator[object]:
    """A callback `(done, total, text)` that draws a bar once something takes longer than two seconds."""
    console = Console(stderr=True)
    bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), console=console)
    tasks: dict[str, object] = {}
    started = time.monotonic()
    printed = 0.0

    def callback(done: int, total: int, text: str) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - started < 2 and text not in tasks:
            return
        if console.is_terminal:
            if not tasks:
                bar.start()
            if text not in tasks:
                tasks[text] = bar.add_task(text, total=total)
            bar.update(tasks[text], completed=done, total=total)  # type: ignore[arg-type]
        elif now - printed > PLAIN_SECONDS:
            printed = now
            print(f"{text}: {done}/{total}", file=sys.stderr, flush=True)

    try:
        yield callback
    finally:
        if tasks:
            bar.stop()
