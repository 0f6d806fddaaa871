"""Decode many image files in worker processes, in order.

Processes, not threads: on two cores 10,000 small JPEGs take 0.6 s in two processes, 1.4 s in two threads and 1.8 s
without either. Plain subprocesses rather than multiprocessing: they neither fork a process in which torch runs
threads nor need the user's script to guard its main module.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from osp.data import decode as decoder
from osp.data.decode import Place
from osp.machine import cores, python

Chunk = tuple[np.ndarray, list[tuple[int, str]]]

WORTH_A_PROCESS = 200
"""Fewer files than this are decoded here: two workers take about as long to start."""

CHUNK = 32
"""Files handed to a worker at once: few, for large photographs take a tenth of a second each and progress must show."""


def decode_all(paths: Sequence[Place], size: int, workers: int | None = None) -> Iterator[Chunk]:
    """Chunks of (images, [(position in paths, reason)]) in the order of `paths`, a few megabytes each."""
    step = max(1, min(CHUNK, (4 << 20) // (3 * size * size)))
    starts = range(0, len(paths), step)
    workers = min(workers or cores(), 16, len(starts))
    if len(paths) < WORTH_A_PROCESS or workers < 1 or not sys.executable:
        chunks: Iterator[Chunk] = (decoder.decode_many(paths[start : start + step], size) for start in starts)
        yield from _placed(chunks, starts)
        return
    with _Pool(size, workers) as pool:
        yield from _placed(pool.map([paths[start : start + step] for start in starts]), starts)


def _placed(chunks: Iterator[Chunk], starts: Sequence[int]) -> Iterator[Chunk]:
    for start, (images, skipped) in zip(starts, chunks, strict=True):
        yield images, [(start + position, reason) for position, reason in skipped]


class _Pool:
    """Threads, each of which asks a worker process of its own."""

    def __init__(self, size: int, workers: int) -> None:
        self._size, self._window = size, 2 * workers
        self._closing = threading.Event()
        self._own = threading.local()
        self._started: list[_Worker] = []
        self._threads = ThreadPoolExecutor(workers)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers first: after an interrupt their images are no longer wanted."""
        self._closing.set()
        for worker in list(self._started):
            worker.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._started:  # one may have been started meanwhile
            worker.close()

    def map(self, chunks: Sequence[Sequence[Place]]) -> Iterator[Chunk]:
        """In order, with only a few chunks ahead of the reader, so that memory stays small."""
        waiting: deque[Future[Chunk]] = deque()
        for chunk in chunks:
            waiting.append(self._threads.submit(self._decode, chunk))
            if len(waiting) > self._window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _decode(self, paths: Sequence[Place]) -> Chunk:
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            self._own.worker = worker = _Worker()
            self._started.append(worker)
        try:
            return worker.ask(paths, self._size)
        except (EOFError, OSError, ValueError):
            self._own.worker = None
            self._started.remove(worker)
            worker.close()
            why = worker.why()
        return self._one_by_one(paths, why)

    def _one_by_one(self, paths: Sequence[Place], why: str) -> Chunk:
        """A worker died on one of these (a crash in a decoder, or memory): find which, and keep the others."""
        if len(paths) == 1 or self._closing.is_set():
            nothing = np.empty((0, 3, self._size, self._size), np.uint8)
            return nothing, [(position, why) for position in range(len(paths))]
        parts = list(_placed((self._decode([path]) for path in paths), range(len(paths))))
        return np.concatenate([images for images, _ in parts]), [item for _, skipped in parts for item in skipped]


class Decoder:
    """A worker process that is kept, for single images in memory: what crashes or takes too long ends it, not us."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    def __call__(self, content: bytes, size: int, most_pixels: int = decoder.MAX_PIXELS) -> np.ndarray:
        """As `osp.data.decode.decode`."""
        with self._lock:
            self._worker = worker = self._worker or _Worker()
            try:
                images, skipped = worker.ask([None], size, most_pixels, content)
            except (EOFError, OSError, ValueError):
                self._worker = None
                worker.close()
                raise decoder.Unreadable(worker.why()) from None
        if skipped:
            raise decoder.Unreadable(skipped[0][1])
        found: np.ndarray = images[0]
        return found

    def close(self) -> None:
        with self._lock:
            if self._worker is not None:
                self._worker.stop()
                self._worker.close()
                self._worker = None


class _Worker:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*python(), decoder.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._stopped = False
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def ask(
        self, paths: Sequence[Place | None], size: int, most_pixels: int = decoder.MAX_PIXELS, content: bytes = b""
    ) -> Chunk:
        """None stands for the `content`."""
        decoder.send(self._in, [list(paths), size, most_pixels], content)
        skipped, body = decoder.receive(self._out)
        # a bytearray, as torch wants arrays that it may write to
        images = np.frombuffer(bytearray(body), np.uint8).reshape(-1, 3, size, size)
        return images, [(int(position), str(reason)) for position, reason in skipped]

    def stop(self) -> None:
        self._stopped = True
        self._process.kill()

    def why(self) -> str:
        """Why there is no answer."""
        timed_out = self._process.returncode == -getattr(signal, "SIGPROF", 0) != 0
        return f"it took longer than {decoder.SECONDS} s to decode" if timed_out else "the decoder crashed on it"

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._stopped else 2)  # it has ended: how, is of interest
        self._process.kill()
        for stream in (self._in, self._out):
            with contextlib.suppress(OSError):
                stream.close()
        self._process.wait()
