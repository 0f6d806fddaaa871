"""One inference at a time, off the event loop, and a short line of those who wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


class Busy(Exception):
    """Too many wait; come back after so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Line:
    """A thread that works, and at most `most` requests that wait for it or are being worked on."""

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="osp-inference")
        self._usual = 0.5
        """Seconds that an inference takes, about."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the line; taken before an upload is read, so that memory is bounded too."""
        if self._inside >= self._most:
            raise Busy(max(1, math.ceil(self._usual * self._inside)))
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of a piece of work, done in the thread when its turn comes."""

        def timed() -> Result:
            started = time.monotonic()
            try:
                return work()
            finally:
                self._usual = 0.8 * self._usual + 0.2 * (time.monotonic() - started)

        return await asyncio.get_running_loop().run_in_executor(self._worker, timed)

    def close(self) -> None:
        """Finish what is being worked on, and nothing else."""
        self._worker.shutdown(wait=True, cancel_futures=True)
