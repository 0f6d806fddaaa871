"""Decode many image files in worker processes, in order.

Processes, not threads, in which two cores decode hardly faster than one. Plain subprocesses rather than
multiprocessing: they neither fork a process in which torch runs threads nor need the user's script to guard its main
module.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from osp.data import decode as decoder
from osp.data.decode import Place
from osp.machine import cores, python

Chunk = tuple[np.ndarray, list[tuple[int, str]]]

WORTH_A_PROCESS = 200  # fewer files than this are decoded here: two workers take about as long to start

CHUNK = 32
"""Files handed to a worker at once: few, for large photographs take a tenth of a second each and progress must show."""


def decode_all(paths: Sequence[Place], size: int, of: int = 0, workers: int | None = None) -> Iterator[Chunk]:
    """Chunks of (images, [(position in paths, reason)]) in the order of `paths`, a few megabytes each.

    `of`: how many files there are in all, where these are a part of them.
    """
    step = max(1, min(CHUNK, (4 << 20) // (3 * size * size)))
    starts = range(0, len(paths), step)
    chunks = [paths[start : start + step] for start in starts]
    workers = min(workers or cores(), 16, len(chunks))
    if max(len(paths), of) < WORTH_A_PROCESS or workers < 1 or not sys.executable:
        yield from _placed((decoder.decode_many(chunk, size) for chunk in chunks), starts)
    else:
        yield from _placed(_in_processes(chunks, size, workers), starts)


def _placed(chunks: Iterable[Chunk], starts: Sequence[int]) -> Iterator[Chunk]:
    for start, (images, skipped) in zip(starts, chunks, strict=True):
        yield images, [(start + position, reason) for position, reason in skipped]


def _in_processes(chunks: Sequence[Sequence[Place]], size: int, workers: int) -> Iterator[Chunk]:
    """In order, with only a few chunks ahead of the reader, so that memory stays small."""
    closing = threading.Event()
    decoders = [Decoder() for _ in range(workers)]
    free: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
    for each in decoders:
        free.put(each)

    def decode(paths: Sequence[Place]) -> Chunk:
        mine = free.get()
        try:
            return mine.ask(paths, size)
        except decoder.Unreadable as reason:
            why = str(reason)
        finally:
            free.put(mine)
        if len(paths) == 1 or closing.is_set():
            return np.empty((0, 3, size, size), np.uint8), [(position, why) for position in range(len(paths))]
        # the process ended over one of these (a crash in a decoder, or memory): find which, and keep the others
        parts = list(_placed((decode([path]) for path in paths), range(len(paths))))
        return np.concatenate([images for images, _ in parts]), [item for _, skipped in parts for item in skipped]

    threads = ThreadPoolExecutor(workers)  # each thread asks a process of its own
    waiting: deque[Future[Chunk]] = deque()
    try:
        for chunk in chunks:
            waiting.append(threads.submit(decode, chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        closing.set()
        for each in decoders:  # first: after an interrupt their images are no longer wanted
            each.kill()
        threads.shutdown(wait=True, cancel_futures=True)
        for each in decoders:
            each.close()


class Decoder:
    """A worker process, started when it is asked: what crashes or takes too long ends it, not us."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(
        self, place: bytes | str, size: int, most_pixels: int = decoder.MAX_PIXELS, whole: bool = False
    ) -> np.ndarray:
        """As `osp.data.decode.decode`, from one thread at a time."""
        path, content = (None, place) if isinstance(place, bytes) else (place, b"")
        with self._lock:
            images, skipped = self.ask([path], size, most_pixels, whole, content)
        if skipped:
            raise decoder.Unreadable(skipped[0][1])
        found: np.ndarray = images[0]
        return found

    def ask(
        self,
        paths: Sequence[Place | None],
        size: int,
        most_pixels: int = decoder.MAX_PIXELS,
        whole: bool = False,
        content: bytes = b"",
    ) -> Chunk:
        """As `decode_many`, None standing for the `content`; `Unreadable` where the process ends over it."""
        if self._process is self._killed:
            self._end()
        self._process = process = self._process or subprocess.Popen(
            [*python(), decoder.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            decoder.send(process.stdin, [list(paths), size, most_pixels, whole], content)
            (skipped, shape), body = decoder.receive(process.stdout)
            # a bytearray, as torch wants arrays that it may write to
            images = np.frombuffer(bytearray(body), np.uint8).reshape(shape)
            return images, [(int(position), str(reason)) for position, reason in skipped]
        except (EOFError, OSError, ValueError):
            timed_out = self._end(patience=2.0) == -getattr(signal, "SIGPROF", 0) != 0
            took_long = f"it took longer than {decoder.SECONDS} s to decode"
            raise decoder.Unreadable(took_long if timed_out else "the decoder crashed on it") from None

    def kill(self) -> None:
        """End the process, if need be from another thread: what it is asked now is unreadable."""
        self._killed = self._process
        if self._killed is not None:
            self._killed.kill()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self, patience: float = 0.0) -> int | None:
        """End the process, and say how it has ended if it does so by itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        process.kill()
        process.communicate()
        return process.returncode
