"""Stopping a run from outside."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or a terminal that was closed: everything is saved."""


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM and SIGHUP ask the loop to stop after the current step; a second Ctrl-C stops at once.

    A SIGHUP that is ignored, as under nohup, stays so.
    """
    caught: list[int] = []

    def handler(number: int, frame: object) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield lambda: bool(caught)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
