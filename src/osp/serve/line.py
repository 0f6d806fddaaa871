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

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from osp.data.decode_pool import Decoder

Result = TypeVar("Result")

HEAD = 10.0
"""Seconds in which a request must have come, up to its body; silence in an upload may last as long, and so may a client
that does not read its answer."""
MOST_IDLE = 256
"""Connections without a request, or with an unread answer; beyond them the one that has waited longest is closed."""
MOST_UPLOADS = 64
"""On their way; beyond them the oldest gives way."""
LOOK = 0.25
"""Seconds between two looks whether a client is still there."""


CLOSE = {"Connection": "close"}
"""With an answer to a request of which nobody waits for the rest."""


def busy(seconds: int) -> HTTPException:
    """Too many wait; come back after so many seconds."""
    sentence = "Too much is waiting; try again in a moment."
    return HTTPException(503, sentence, {"Retry-After": str(max(1, seconds)), **CLOSE})


class Line:
    """Threads that work, each with a decoder of its own, and at most `most` requests that have one or wait for it."""

    def __init__(self, most: int, threads: int = 1) -> None:
        self._most, self._inside = most, 0
        self._decoders = [Decoder() for _ in range(threads)]
        self._free: asyncio.Queue[Decoder] = asyncio.Queue()
        for decoder in self._decoders:
            self._free.put_nowait(decoder)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="osp-line")
        self._usual = 0.5
        """Seconds that a piece of work takes, about."""

    async def run(self, request: Request, work: Callable[[Decoder], Result]) -> Result:
        """The result of a piece of work, done in a thread when its turn comes.

        Whoever has gone loses the turn, and an image that is being decoded for them is given up.
        """
        if self._inside >= self._most:
            raise busy(math.ceil(self._usual * self._inside))
        self._inside += 1
        try:
            turn = asyncio.ensure_future(self._free.get())
            await _while_here(request, turn, turn.cancel)
            if turn.cancelled():
                raise HTTPException(400, "The client has gone.")
            decoder = turn.result()
            try:
                if await request.is_disconnected():
                    raise HTTPException(400, "The client has gone.")
                started = time.monotonic()
                task = asyncio.get_running_loop().run_in_executor(self._threads, work, decoder)
                await _while_here(request, task, decoder.kill)
                self._usual = 0.8 * self._usual + 0.2 * (time.monotonic() - started)
                return task.result()
            finally:
                self._free.put_nowait(decoder)
        finally:
            self._inside -= 1

    def close(self) -> None:
        """Finish what is being worked on, images to decode aside, and nothing else."""
        for decoder in self._decoders:
            decoder.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for decoder in self._decoders:
            decoder.close()


async def _while_here(request: Request, task: asyncio.Future[Any], stop: Callable[[], object]) -> None:
    """Wait for a task, and stop it when the client has gone."""
    while not (await asyncio.wait([task], timeout=LOOK))[0]:
        if await request.is_disconnected():
            stop()


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
        too_long = HTTPException(413, f"The file is larger than {self._each / 1e6:.0f} MB.")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > 4 * self._each):
            raise too_long
        now = asyncio.get_running_loop().time
        end = now() + self._seconds
        clock = asyncio.timeout_at(min(end, now() + HEAD))
        try:
            async with clock:
                self._arriving[clock] = 0
                self._make_room(clock)
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
                raise HTTPException(408, f"The upload took {waited}.", CLOSE) from None
        except ClientDisconnect:
            raise HTTPException(400, "The upload was cut off.") from None
        finally:
            kept = self._arriving.pop(clock, None)
        if kept is None:
            raise busy(1)
        if size > self._each:
            raise too_long
        return b"".join(parts)

    def _make_room(self, newest: asyncio.Timeout) -> None:
        while sum(self._arriving.values()) > self._most or len(self._arriving) > MOST_UPLOADS:
            oldest = next(clock for clock in self._arriving if clock is not newest)
            del self._arriving[oldest]
            if not oldest.expired():  # nor about to end by its own clock
                oldest.reschedule(0.0)  # ends it at once


class Timed(H11Protocol):
    """A connection that is ended where no request comes in time, an answer is not read, or too many others are open."""

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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        """The clock runs while it is the client's turn: to ask, or to read."""
        working = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        if working or (self.transport.is_closing() and not self.transport.get_write_buffer_size()):
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
        self.transport.abort()  # close() would wait until all is read
