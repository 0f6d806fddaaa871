"""Running what a table lacks: `run_jobs`, and where runs are carried out, in processes of this machine (`Processes`) or
on the nodes of a cluster (`osp.bench.on_ray`). A task of a Slurm array (`osp.bench.slurm`) is such a bench of its own.

A run that another bench works on is waited for, not repeated; one whose process has died is continued; one whose node
was lost is given to another. Failures are noted and do not stop the rest. Ctrl-C and SIGTERM are passed on to the runs,
which save and end.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Protocol

from osp.bench import worker
from osp.bench.jobs import Job, unfinished
from osp.bench.store import Status, Store
from osp.bench.worker import DONE, ELSEWHERE, FAILED, LOST, STOPPED, last_line
from osp.machine import threads

Say = Callable[[str], None]
POLL = 0.2
ELSEWHERE_PAUSE = 2.0
"""Seconds before a run that another process works on is looked at again."""
RETRIES = 5
"""How often a run may lose its node before it counts as failed."""


@dataclass(frozen=True)
class Ended:
    """A run that is no longer at work: how its process ended, and what that said last."""

    job: Job
    code: int
    said: str = ""


class Executor(Protocol):
    """Where runs are carried out."""

    def room(self) -> bool:
        """Whether one more may be started now."""

    def start(self, job: Job) -> None: ...

    def running(self) -> list[Job]: ...

    def ended(self) -> list[Ended]:
        """Those that ended since the last time."""

    def stop(self, at_once: bool) -> None:
        """Ask all runs to save and end, or end them."""


class Processes:
    """The executor of this machine: `workers` processes side by side, one run each."""

    def __init__(self, store: Store, workers: int, cores: int | None = None) -> None:
        self.store, self.workers = store, workers
        self._threads = threads(workers, cores)
        self._running: dict[BaseProcess, Job] = {}
        self._stopping = False

    def room(self) -> bool:
        return len(self._running) < self.workers

    def running(self) -> list[Job]:
        return list(self._running.values())

    def start(self, job: Job) -> None:
        self._running[worker.start(self.store, job.name, job.recipe(self._threads))] = job

    def ended(self) -> list[Ended]:
        return [self._end(process) for process in list(self._running) if process.exitcode is not None]

    def _end(self, process: BaseProcess) -> Ended:
        job, code = self._running.pop(process), process.exitcode or 0
        if self._stopping and code == -signal.SIGTERM:  # before it could say so itself
            code = STOPPED
        return Ended(job, code, last_line(self.store.log(job.name)))

    def stop(self, at_once: bool) -> None:
        self._stopping = True
        for process in self._running:
            worker.stop(process, at_once)


# Running


@dataclass
class Outcome:
    """What came of a bench."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons by name of the run."""
    stopped: bool = False


@dataclass
class _Waiting:
    """Runs that are still to be started, and what is known of them."""

    jobs: list[Job]
    not_before: dict[str, float] = field(default_factory=dict)
    """Moments before which a run that another process works on is not looked at again."""
    lost: Counter[str] = field(default_factory=Counter)


def run_jobs(
    store: Store,
    jobs: Sequence[Job],
    executor: Executor,
    say: Say,
    left: Callable[[list[Job]], str],
    for_others: Callable[[Job, Status], bool] = lambda job, status: False,
) -> Outcome:
    """Run what is not finished. `left` tells the time that these will take; `for_others`, what is not done here."""
    outcome, waiting = Outcome(), _Waiting(unfinished(store, jobs))
    outcome.finished = [job.name for job in jobs if job not in waiting.jobs]
    if not waiting.jobs:
        return outcome
    store.create()
    total, before = len(waiting.jobs), len(outcome.finished)
    say(f"{total} of {len(jobs)} runs to do{left(waiting.jobs)}")
    with stopping(executor) as stopped:
        while (waiting.jobs or executor.running()) and not (stopped() and not executor.running()):
            while executor.room() and waiting.jobs and not stopped():
                job = next_job(store, waiting, outcome, say, for_others)
                if job is None:
                    break
                executor.start(job)
            time.sleep(POLL)
            for ended in executor.ended():
                if stopped() and ended.code in (STOPPED, LOST):
                    continue
                note_end(store, ended, waiting, outcome, say)
                name = ended.job.name
                if ended.code in (DONE, FAILED) or name in outcome.failed:
                    done = len(outcome.finished) + len(outcome.failed) - before
                    word = "failed" if name in outcome.failed else "done"
                    say(f"{done}/{total} {name}: {word}{left([*waiting.jobs, *executor.running()])}")
        outcome.stopped = stopped()
    return outcome


def next_job(
    store: Store, waiting: _Waiting, outcome: Outcome, say: Say, for_others: Callable[[Job, Status], bool]
) -> Job | None:
    """The next run that no other process works on, taken off the list."""
    now = time.monotonic()
    for job in list(waiting.jobs):
        if now < waiting.not_before.get(job.name, 0):
            continue
        status: Status = store.status(job.plan, job.keys)
        if status == "finished":  # another bench has done it
            waiting.jobs.remove(job)
            outcome.finished.append(job.name)
        elif for_others(job, status):
            waiting.jobs.remove(job)
        elif status == "running":
            if job.name not in waiting.not_before:
                say(f"{job.name}: another process works on it")
            waiting.not_before[job.name] = now + ELSEWHERE_PAUSE
        else:
            waiting.jobs.remove(job)
            return job
    return None


def note_end(store: Store, ended: Ended, waiting: _Waiting, outcome: Outcome, say: Say) -> None:
    """Note how a run ended. The store has the last word, since a process may die after its last file."""
    job, name = ended.job, ended.job.name
    if ended.code == ELSEWHERE:
        waiting.not_before[name] = time.monotonic() + ELSEWHERE_PAUSE
        waiting.jobs.append(job)
    elif store.status(job.plan, job.keys) == "finished":
        outcome.finished.append(name)
    elif ended.code in (LOST, STOPPED) and waiting.lost[name] < RETRIES:  # stopped, but not by us
        waiting.lost[name] += 1
        waiting.jobs.append(job)
        say(f"{name}: {ended.said or 'it was stopped'}; it is started again ({waiting.lost[name]} of {RETRIES} times)")
    else:
        folder = store.folder_for(job.plan, job.keys)
        outcome.failed[name] = store.failure(folder) or ended.said or f"ended with code {ended.code}"


@contextmanager
def stopping(executor: Executor) -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C and SIGTERM ask the runs to save and end; a second Ctrl-C ends them at once."""
    caught: list[int] = []

    def handler(number: int, frame: object) -> None:
        caught.append(number)
        executor.stop(at_once=len(caught) > 1)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
