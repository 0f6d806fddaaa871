"""Running what a table lacks: `run_jobs`, and where runs are carried out, in processes of this machine (`Processes`) or
on the nodes of a cluster (`osp.bench.on_ray`). A task of a Slurm array (`osp.bench.slurm`) is such a bench of its own.

A run that another bench works on is waited for, not repeated; one whose process has died is continued; one whose node
was lost is given to another. Failures are noted and do not stop the rest. Ctrl-C and SIGTERM are passed on to the runs,
which save and end; on Windows, where a process cannot be asked, they end and keep what they last saved.
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
from osp.bench.worker import DONE, ELSEWHERE, FAILED, LOST, STOPPED, Ended, last_line
from osp.machine import threads

Say = Callable[[str], None]
POLL = 0.2
ELSEWHERE_PAUSE = 2.0
"""Seconds before a run that another process works on is looked at again."""
RETRIES = 5
"""How often a run may lose its node before it counts as failed."""


class Executor(Protocol):
    """Where runs are carried out."""

    def room(self) -> bool:
        """Whether one more may be started now."""

    def start(self, job: Job) -> None: ...

    def running(self) -> list[Job]: ...

    def ended(self) -> list[tuple[Job, Ended]]:
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
        process = worker.start(self.store, job.name, job.recipe(self._threads))
        self._running[process] = job
        if self._stopping:  # it was asked to while the process was being made
            worker.stop(process)

    def ended(self) -> list[tuple[Job, Ended]]:
        found = []
        for process in [each for each in self._running if each.exitcode is not None]:
            job, code = self._running.pop(process), process.exitcode or 0
            if self._stopping and code == -signal.SIGTERM:  # before it could say so itself
                code = STOPPED
            found.append((job, Ended(code, last_line(self.store.log(job.name)))))
        return found

    def stop(self, at_once: bool) -> None:
        self._stopping = True
        for process in self._running:
            worker.stop(process, at_once)


# Running


@dataclass
class Outcome:
    """The runs of a bench: those still to be started, and what came of the others."""

    waiting: list[Job]
    finished: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons by name of the run."""
    stopped: bool = False
    not_before: dict[str, float] = field(default_factory=dict)
    """Moments before which a run that another process works on is not looked at again."""
    lost: Counter[str] = field(default_factory=Counter)
    """How often a run has lost its node."""


def run_jobs(
    store: Store,
    jobs: Sequence[Job],
    executor: Executor,
    say: Say,
    left: Callable[[list[Job]], str],
    for_others: Callable[[Job, Status], bool] = lambda job, status: False,
) -> Outcome:
    """Run what is not finished. `left` tells the time that these will take; `for_others`, what is not done here."""
    waiting = unfinished(store, jobs)
    outcome = Outcome(waiting, [job.name for job in jobs if job not in waiting])
    if not waiting:
        return outcome
    store.create()
    total, before = len(waiting), len(outcome.finished)
    say(f"{total} of {len(jobs)} runs to do{left(waiting)}")
    with stopping(executor) as stopped:
        while (waiting or executor.running()) and not (stopped() and not executor.running()):
            while executor.room() and not stopped() and (job := next_job(store, outcome, say, for_others)) is not None:
                executor.start(job)
            time.sleep(POLL)
            for job, ended in executor.ended():
                if stopped() and ended.code not in (DONE, FAILED):  # a signal to the whole group ends it in its own way
                    continue
                note_end(store, job, ended, outcome, say)
                if ended.code in (DONE, FAILED) or job.name in outcome.failed:
                    done = len(outcome.finished) + len(outcome.failed) - before
                    word = "failed" if job.name in outcome.failed else "done"
                    say(f"{done}/{total} {job.name}: {word}{left([*waiting, *executor.running()])}")
        outcome.stopped = stopped()
    return outcome


def next_job(store: Store, outcome: Outcome, say: Say, for_others: Callable[[Job, Status], bool]) -> Job | None:
    """The next run that no other process works on, taken off the list."""
    now = time.monotonic()
    for job in list(outcome.waiting):
        if now < outcome.not_before.get(job.name, 0):
            continue
        status = store.status(job.plan, job.keys)
        if status == "running" and not for_others(job, status):
            if job.name not in outcome.not_before:
                say(f"{job.name}: another process works on it")
            outcome.not_before[job.name] = now + ELSEWHERE_PAUSE
            continue
        outcome.waiting.remove(job)
        if status == "finished":  # another bench has done it
            outcome.finished.append(job.name)
        elif not for_others(job, status):
            return job
    return None


def note_end(store: Store, job: Job, ended: Ended, outcome: Outcome, say: Say) -> None:
    """Note how a run ended. The store has the last word, since a process may die after its last file."""
    name, lost = job.name, outcome.lost
    if ended.code == ELSEWHERE:
        outcome.not_before[name] = time.monotonic() + ELSEWHERE_PAUSE
        outcome.waiting.append(job)
    elif store.status(job.plan, job.keys) == "finished":
        outcome.finished.append(name)
    elif ended.code in (LOST, STOPPED) and lost[name] < RETRIES:  # stopped, but not by us
        lost[name] += 1
        outcome.waiting.append(job)
        say(f"{name}: {ended.said or 'it was stopped'}; it is started again ({lost[name]} of {RETRIES} times)")
    else:
        folder = store.folder_for(job.plan, job.keys)
        if ended.code < 0:  # it may not have come to taking away the note of an earlier failure
            outcome.failed[name] = ended.said or f"killed by signal {-ended.code}"
        else:
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
