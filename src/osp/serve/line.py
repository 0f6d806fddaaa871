"""What arrives and what waits: bounded in number, bytes and seconds, so that slow or silent clients lock nobody out.

For every server of this room: uploads are read by `Uploads`, worked on in a `Line`, and connections are `Timed`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

Result = TypeVar("Result")

HEAD = 10.0
"""Seconds in which a request must have come, up to its body; silence in an upload may last as long."""
MOST_IDLE = 256
"""Connections without a request; beyond them the one that has waited longest is closed."""


class Refused(Exception):
    """A status, and a sentence that says why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Busy(Exception):
    """Too many wait; come back after so many seconds."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Line:
    """A thread that works, and at most `most` requests that wait for it or are being worked on."""

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, 0
        self._turn = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="osp-inference")
        self._usual = 0.5
        """Seconds that an inference takes, about."""

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """The result of a piece of work, done in the thread when its turn comes; not if whoever asked has gone."""
        if self._inside >= self._most:
            raise Busy(max(1, math.ceil(self._usual * self._inside)))
        self._inside += 1
        try:
            async with self._turn:
                if await request.is_disconnected():
                    raise Refused(400, "The client has gone.")
                started = time.monotonic()
                try:
                    return await asyncio.get_running_loop().run_in_executor(self._worker, work)
                finally:
                    self._usual = 0.8 * self._usual + 0.2 * (time.monotonic() - started)
        finally:
            self._inside -= 1

    def close(self) -> None:
        """Finish what is being worked on, and nothing else."""
        self._worker.shutdown(wait=True, cancel_futures=True)


class Uploads:
    """Bodies of requests on their way, together of at most `most` bytes: beyond that the oldest one gives way."""

    def __init__(self, most: int, each: int, seconds: float) -> None:
        self._most, self._each, self._seconds = most, each, seconds
        self._arriving: dict[asyncio.Timeout, int] = {}

    async def read(self, request: Request) -> bytes:
        """The body, which is refused as soon as it is too long; the rest of it is read and dropped, so that a browser
        gets to see the answer."""
        parts: list[bytes] = []
        size = 0
        too_long = Refused(413, f"The file is larger than {self._each / 1e6:.0f} MB.")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > 4 * self._each):
            raise too_long
        now = asyncio.get_running_loop().time
        end = now() + self._seconds
        clock = asyncio.timeout_at(min(end, now() + HEAD))
        try:
            async with clock:
                self._arriving[clock] = 0
                async for part in request.stream():
                    if clock not in self._arriving:
                        break
                    size += len(part)
                    if size > 4 * self._each:
                        break
                    parts.append(part) if size <= self._each else parts.clear()
                    self._arriving[clock] = size if size <= self._each else 0
                    clock.reschedule(min(end, now() + HEAD))
                    self._make_room(clock)
        except TimeoutError:
            if clock in self._arriving:
                waited = f"longer than {self._seconds:.0f} seconds" if now() >= end else "a pause that was too long"
                raise Refused(408, f"The upload took {waited}.") from None
        except ClientDisconnect:
            raise Refused(400, "The upload was cut off.") from None
        finally:
            kept = self._arriving.pop(clock, None)
        if kept is None:
            raise Busy(1)
        if size > self._each:
            raise too_long
        return b"".join(parts)

    def _make_room(self, newest: asyncio.Timeout) -> None:
        while sum(self._arriving.values()) > self._most:
            oldest = next(clock for clock in self._arriving if clock is not newest)
            del self._arriving[oldest]
            oldest.reschedule(0.0)  # ends it at once


class Timed(H11Protocol):
    """A connection that is closed where no request comes in time, or where too many others are open."""

    _idle: ClassVar[dict[Timed, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        if (self.cycle is not None and not self.cycle.response_complete) or self.transport.is_closing():
            self._unwatch()
        elif self not in self._idle:
            self._idle[self] = self.loop.call_later(HEAD, self._late)
            if len(self._idle) > MOST_IDLE:
                next(iter(self._idle))._late()

    def _unwatch(self) -> None:
        handle = self._idle.pop(self, None)
        if handle is not None:
            handle.cancel()

    def _late(self) -> None:
        self._unwatch()
        self.transport.close()
