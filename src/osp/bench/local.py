"""Runs on this machine: some processes side by side, one run each.

Ctrl-C and SIGTERM are passed on to the runs, which save and end; a bench that is killed outright takes them along (see
`worker`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from osp.bench.jobs import Job
from osp.bench.run import Ended
from osp.bench.store import Store
from osp.bench.worker import STOPPED


class Processes:
    """Where `run_jobs` lets runs be carried out: here, `workers` at a time."""

    def __init__(self, store: Store, workers: int, cores: int | None = None) -> None:
        self.store, self.workers = store, workers
        self._threads = max(1, (cores or os.cpu_count() or 1) // workers)
        self._running: dict[subprocess.Popen[bytes], Job] = {}
        self._stopping = False

    def room(self) -> bool:
        return len(self._running) < self.workers

    def running(self) -> list[Job]:
        return list(self._running.values())

    def start(self, job: Job) -> None:
        with open(self.store.log(job.name), "ab") as log:
            process = start_worker(
                self.store.root, job.name, job.with_threads(self._threads).recipe.asked(), log.fileno()
            )
        self._running[process] = job

    def ended(self) -> list[Ended]:
        found = []
        for process in [each for each in self._running if each.poll() is not None]:
            job, code = self._running.pop(process), process.returncode
            if self._stopping and code == -signal.SIGTERM:  # before it could say so itself
                code = STOPPED
            found.append(Ended(job, code, last_line(self.store.log(job.name))))
        return found

    def stop(self, at_once: bool) -> None:
        self._stopping = True
        for process in list(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)


def start_worker(store: Path, name: str, recipe: dict[str, object], log: int) -> subprocess.Popen[bytes]:
    """A process for one run, which ends with this one; what it prints goes to its log."""
    command = [sys.executable, "-m", "osp.bench.worker", str(store), name, str(os.getpid())]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
    )  # a session of its own: Ctrl-C reaches it once, from us
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(recipe).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already, and its exit code says why
    return process


def last_line(path: Path) -> str:
    """What a process said last."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("osp: ") if lines else ""
