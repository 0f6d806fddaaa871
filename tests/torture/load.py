"""Long work in flat memory: predictions for many images, many steps of training; and many clients of `osp serve`."""

from __future__ import annotations

import http.client
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from osp.engine.progress import Display
from osp.engine.train import train
from osp.models import load as open_run
from torture.trial import _largest
from torture.works import recipe

GROWTH = 64.0
"""Megabytes by which the second half of the work may exceed the first."""


def cases(base: Path, images: int, steps: int, clients: int, seconds: float) -> Iterator[tuple[str, Callable[[], str]]]:
    base.mkdir(parents=True)
    yield f"serve, {clients} clients", lambda: clients_of_serve(base / "serve", clients, seconds)
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
    for _ in model.predict_files(files):
        done += 1
        if done == count // 2:
            half = _largest()
    grown = _largest() - half
    print(f"  predict: {count:,} images, {half:.0f} MB at half, {grown:.1f} MB more at the end")
    return "" if done == count and grown < GROWTH else f"{done} predictions, {grown:.0f} MB more in the second half"


class Watch(Display):
    """A display that notes memory and open files on the way."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, [(0, 0.0, 0)]

    def step(self, done: int, stage: str) -> None:
        if done % self.every == 0:
            self.seen.append((done, _resident(os.getpid()), len(os.listdir("/proc/self/fd"))))


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


# Clients of osp serve


@dataclass
class Served:
    """What many clients met with."""

    waits: list[float] = field(default_factory=list)
    """Seconds of the answers."""
    whole: list[float] = field(default_factory=list)
    """Seconds from the first question to the answer, with all that the server asked to wait."""
    later: int = 0
    """Times that the server said: come back in a moment."""
    faults: Counter[str] = field(default_factory=Counter)


@contextmanager
def serving(run: Path) -> Iterator[tuple[int, int]]:
    """A running `osp serve`: its port and its process."""
    path = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-m", "osp", "serve", str(run), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        line = ""
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)/", line)) is None:
            line = process.stdout.readline()
            assert line, "osp serve does not start"
        yield int(found[1]), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def clients_of_serve(base: Path, clients: int, seconds: float) -> str:
    """Clients that ask, come back when told to, and ask again: every question is answered, and memory stays flat."""
    base.mkdir(parents=True)
    train(recipe("supervised", 4), base / "run")
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG")
    served, lock = Served(), threading.Lock()
    with serving(base / "run") as (port, process):
        end = time.monotonic() + seconds
        given = (port, content.getvalue(), end, served, lock)
        crowd = [threading.Thread(target=_ask_on, args=given) for _ in range(clients)]
        for each in crowd:
            each.start()
        time.sleep(seconds / 2)
        half = _resident(process)
        for each in crowd:
            each.join()
        grown, files = _resident(process) - half, len(os.listdir(f"/proc/{process}/fd"))
    answered, lost = len(served.waits), sum(served.faults.values())
    waits, whole = np.array(served.waits or [0.0]), np.array(served.whole or [0.0])
    print(
        f"  serve: {clients} clients, {seconds:.0f} s: {answered:,} answered, {lost} lost;\n"
        f"  latency: median {np.median(waits):.3f}, 95 % {np.percentile(waits, 95):.3f}, longest {waits.max():.3f} s;\n"
        f"  told to come back {served.later:,} times; so median {np.median(whole):.2f}, longest {whole.max():.1f} s;\n"
        f"  {grown:+.1f} MB in the second half, {files} open files at the end"
    )
    if lost or answered < clients:
        return f"{answered} answered, lost: {dict(served.faults)}"
    return "" if grown < GROWTH and files < 40 else f"{grown:.0f} MB more in the second half, {files} open files"


def _ask_on(port: int, content: bytes, end: float, served: Served, lock: threading.Lock) -> None:
    """Ask until the time is over; a question that was begun is asked until it is answered, for two minutes at most."""
    while time.monotonic() < end:
        began = time.monotonic()
        fault = "no answer in two minutes"
        while time.monotonic() - began < 120:
            started = time.monotonic()
            try:
                status, pause = _ask(port, content)
            except OSError as error:
                fault = type(error).__name__
                break
            if status == 503 and pause is not None:
                with lock:
                    served.later += 1
                time.sleep(min(float(pause), 2.0))
                continue
            fault = "" if status == 200 else f"status {status}"
            break
        with lock:
            if fault:
                served.faults[fault] += 1
            else:
                served.waits.append(time.monotonic() - started)
                served.whole.append(time.monotonic() - began)


def _ask(port: int, content: bytes) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/predict?explain=false", content, {"Content-Type": "image/jpeg"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Retry-After")
    finally:
        connection.close()


def _resident(process: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
