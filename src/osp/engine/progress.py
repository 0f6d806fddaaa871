"""What a run shows while it runs: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as Screen
from rich.text import Text

from osp.errors import printable

PLAIN_SECONDS = 10.0
"""At most one plain line in this many seconds, evaluations aside."""
PATIENCE = 2.0
"""Seconds that loading may take before it is shown."""
WINDOW = 60.0
"""Seconds from whose speed the time left is estimated."""
SHORTEST_BAR, LONGEST_BAR = 6, 40


class Display:
    """What a run tells while it runs; this one shows nothing."""

    only: Collection[str] | None = None
    """The numbers to show, by name; None: all of them."""

    def wanted(self, values: Mapping[str, float]) -> Mapping[str, float]:
        return {name: value for name, value in values.items() if self.only is None or name in self.only}

    def begin(self, total: int, done: int) -> None: ...
    def step(self, done: int, stage: str) -> None: ...
    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...
    def loading(self, done: int, total: int, text: str) -> None:
        """Called during anything that takes long before the first step: reading, decoding, fetching."""


class Speed:
    """The time that the rest will take, at the pace of the present stage's last minute.

    Stages differ in what a step costs: with a new one the pace of the last is only used until there is another.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done, self.stage = total, done, ""
        self._pace: float | None = None
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), done)])

    def step(self, done: int, stage: str) -> None:
        """Note where the run stands."""
        now = time.monotonic()
        self.done = done
        if stage != self.stage:
            if self.stage:
                self._pace = self._present(now)
                self._seen = deque([(now, done)])
            self.stage = stage
        if now - self._seen[-1][0] >= 0.5:
            self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()

    def left(self) -> float | None:
        """Seconds, or None before there is anything to judge by."""
        if self.done >= self.total:
            return 0.0
        pace = self._present(time.monotonic())
        return None if pace is None else (self.total - self.done) * pace

    def _present(self, now: float) -> float | None:
        """Seconds per step."""
        then, before = self._seen[0]
        return (now - then) / (self.done - before) if self.done > before else self._pace


class Live(Display):
    """A bar with steps, time left and validation accuracy; under it the latest losses of the present stage."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._screen: Screen | None = None
        self._opened = time.monotonic()
        self._speed = Speed(0, 0)
        self._terms: dict[str, float] = {}
        self._measured: dict[str, float] = {}

    def loading(self, done: int, total: int, text: str) -> None:
        if time.monotonic() - self._opened > PATIENCE:
            if text != self._speed.stage:
                self.begin(total, done)
            self._speed.step(done, text)

    def begin(self, total: int, done: int) -> None:
        self._speed = Speed(total, done)
        if self._screen is None:
            self._screen = Screen(self, console=self.console, refresh_per_second=4)
            self._screen.start()

    def step(self, done: int, stage: str) -> None:
        if stage != self._speed.stage:
            self._terms = {}  # those of the earlier stage say nothing about this one
        self._speed.step(done, stage)

    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None:
        self.step(done, stage)
        if "loss" in values:
            self._terms = dict(self.wanted({"loss": values["loss"], **values}))
        else:
            self._measured = dict(self.wanted(values))

    def say(self, text: str) -> None:
        self.console.print(Text(printable(text, lines=True)), soft_wrap=True)

    def end(self) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Two lines, neither ever wider than the terminal: what does not fit is left out, the bar's line last."""
        width, dot = options.max_width - 1, dot_of(console.encoding)
        done, total = self._speed.done, self._speed.total
        numbers = [f"{done:,}/{total:,}"]
        if (left := self._speed.left()) is not None:
            numbers.append(f"{clock(left)} left")
        if (accuracy := self._measured.get("val_accuracy")) is not None:
            numbers.append(f"val {accuracy:.1f} %")
        right = dot.join(numbers)
        room = width - cell_len(right) - 2
        name = Text(printable(self._speed.stage or "start"), "bold")
        name.truncate(max(room - SHORTEST_BAR, 0), overflow="ellipsis")
        bar = min(room - cell_len(name.plain), LONGEST_BAR)
        line = Text.assemble(name, " ")
        if bar > 1:
            full, rest = ("#", "-") if options.ascii_only else ("━", "─")
            filled = min(bar * done // max(total, 1), bar)
            line.append(full * filled, "green").append(rest * (bar - filled), "dim").append(" ")
        others = {key: value for key, value in self._measured.items() if key != "val_accuracy"}
        for text in (line.append(right), Text(brief(self._terms | others, dot), "cyan")):
            text.truncate(max(width, 1), overflow="ellipsis")
            yield text


class Plain(Display):
    """Lines for logs and pipes."""

    def __init__(self) -> None:
        self._last = 0.0
        self._opened = self._loaded = time.monotonic()
        self._speed, self._unended = Speed(0, 0), False

    def loading(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if text != self._speed.stage:
            self._speed, self._unended = Speed(total, done), False
        self._speed.step(done, text)
        due = now - self._opened > PATIENCE and (now - self._loaded > PLAIN_SECONDS or self._loaded == self._opened)
        if due or (self._unended and done >= total):  # what has been announced is also seen to end
            self._loaded, self._unended = now, done < total
            left = self._speed.left() if done < total else None
            rest = "" if left is None else f"{dot_of(getattr(sys.stderr, 'encoding', None))}{clock(left)} left"
            self.say(f"{text}: {done:,}/{total:,}{rest}")

    def begin(self, total: int, done: int) -> None:
        self._speed = Speed(total, done)

    def step(self, done: int, stage: str) -> None:
        self._speed.step(done, stage)

    def values(self, done: int, stage: str, values: Mapping[str, float]) -> None:
        self.step(done, stage)
        values, now = self.wanted(values), time.monotonic()
        if not values:
            return
        if now - self._last < PLAIN_SECONDS and "val_accuracy" not in values and done < self._speed.total:
            return
        self._last = now
        left = self._speed.left()
        dot = dot_of(getattr(sys.stderr, "encoding", None))
        rest = "" if left is None else f"{clock(left)} left{dot}"
        self.say(f"{stage} {done}/{self._speed.total}{dot}{rest}{brief(values, dot)}")

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full or closed log is no reason to lose a training
            print(printable(text, lines=True), file=sys.stderr, flush=True)


@contextmanager
def shown(progress: bool = True, only: Collection[str] | None = None) -> Iterator[Display]:
    """A display that fits standard error; ended whatever happens."""
    display = display_for_terminal() if progress else Display()
    display.only = only
    try:
        yield display
    finally:
        display.end()


def display_for_terminal() -> Display:
    """A live bar where standard error is a terminal, plain lines where it is a file or a pipe."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    return Live(console) if console.is_terminal and not console.is_dumb_terminal else Plain()


def dot_of(encoding: str | None) -> str:
    """The separator between values, in an alphabet that the stream has."""
    return " · " if (encoding or "").lower().startswith("utf") else " | "


def brief(values: Mapping[str, float], dot: str = " · ") -> str:
    """`loss 0.412 · pool_auroc 98.3`."""
    return dot.join(f"{printable(name)} {value:.4g}" for name, value in values.items())


def clock(seconds: float) -> str:
    """Time left, counted down to the second.

    >>> clock(5), clock(65), clock(7265)
    ('5 s', '1:05', '2:01:05')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
