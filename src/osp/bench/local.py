"""Runs on this machine: some processes side by side, one run each.

Where the system can, they are forked from a process that has loaded torch once, which saves seconds a run. Ctrl-C and
SIGTERM are passed on to the runs, which save and end; a bench that is killed outright takes them along (see `worker`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from osp.bench.jobs import Job
from osp.bench.run import Ended
from osp.bench.store import Store
from osp.bench.worker import STOPPED, forked
from osp.machine import python, safe_path, threads

PRELOADED = ["osp.engine.train", "osp.bench.worker", "osp.report.picture", "sklearn.metrics"]
"""What every run needs, and what takes long to import."""


class Processes:
    """Where `run_jobs` lets runs be carried out: here, `workers` at a time."""

    def __init__(self, store: Store, workers: int, cores: int | None = None) -> None:
        self.store, self.workers = store, workers
        self._threads = threads(workers, cores)
        self._running: dict[Run, Job] = {}
        self._stopping = False

    def room(self) -> bool:
        return len(self._running) < self.workers

    def running(self) -> list[Job]:
        return list(self._running.values())

    def start(self, job: Job) -> None:
        recipe = job.with_threads(self._threads).recipe.asked()
        self._running[Run(self.store, job.name, recipe)] = job

    def ended(self) -> list[Ended]:
        found = []
        for run in list(self._running):
            code = run.exit_code()
            if code is None:
                continue
            job = self._running.pop(run)
            if self._stopping and code == -signal.SIGTERM:  # before it could say so itself
                code = STOPPED
            found.append(Ended(job, code, last_line(self.store.log(job.name))))
        return found

    def stop(self, at_once: bool) -> None:
        self._stopping = True
        for run in self._running:
            run.send(signal.SIGKILL if at_once else signal.SIGTERM)


class Run:
    """The process of one run: forked where the system has a fork server, else started anew."""

    def __init__(self, store: Store, name: str, recipe: dict[str, Any]) -> None:
        self._process: Any
        log = store.open_log(name)  # refused here where it cannot be one
        if "forkserver" in multiprocessing.get_all_start_methods():
            forks = multiprocessing.get_context("forkserver")
            forks.set_forkserver_preload(PRELOADED)
            self._process = forks.Process(target=forked, args=(store.root, name, recipe))
            with safe_path():  # the fork server is started with the first of them
                self._process.start()
        else:
            self._process = start_worker(store.root, name, recipe, log.fileno())
        log.close()

    def exit_code(self) -> int | None:
        """None while it runs; minus the number of the signal that ended it."""
        code: int | None = (
            self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode
        )
        return code

    def send(self, number: signal.Signals) -> None:
        if self.exit_code() is None:
            os.kill(self._process.pid, number)


def start_worker(store: Path, name: str, recipe: dict[str, object], log: int) -> subprocess.Popen[bytes]:
    """A process for one run, which ends with this one; what it prints goes to its log."""
    command = [*python(), "-m", "osp.bench.worker", str(store), name, str(os.getpid())]
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
    """What a process said last, in a log that is no link."""
    if path.is_symlink():
        return ""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("osp: ") if lines else ""
