"""Running what a table lacks: some processes side by side, one run each.

A run that another bench works on is waited for, not repeated; one whose process has died is continued. Ctrl-C and
SIGTERM are passed on to the runs, which save and end; a bench that is killed outright takes them along (see `worker`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osp.bench.store import Status, Store
from osp.bench.worker import DONE, ELSEWHERE, STOPPED
from osp.errors import UserError
from osp.recipe import Plan, Recipe

Say = Callable[[str], None]
POLL = 0.2
ELSEWHERE_PAUSE = 2.0
"""Seconds before a run that another process works on is looked at again."""


@dataclass(frozen=True)
class Job:
    """A run that is wanted."""

    recipe: Recipe
    plan: Plan
    name: str
    """Of its folder in the store."""
    keys: Mapping[str, str] | None = None


@dataclass
class Outcome:
    """What came of a bench."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons by name of the run."""
    stopped: bool = False


def jobs_for(store: Store, recipes: Sequence[Recipe], plans: Sequence[Plan], keys: KeyCache | None = None) -> list[Job]:
    """The wanted runs, each once: tables share them."""
    found: dict[str, Job] = {}
    for recipe, plan in zip(recipes, plans, strict=True):
        content = keys.of(plan) if keys is not None else None
        name = store.folder_for(plan, content).path.name
        if name in found:  # the same run for two tables: tested on what either of them wants
            other = found[name]
            both = tuple(sorted({*other.plan.test_ood, *plan.test_ood}))
            recipe, plan = recipe.changed(test_ood=both), plan.changed(test_ood=both)
        found[name] = Job(recipe, plan, name, content)
    return list(found.values())


class KeyCache:
    """Content keys of the images at hand, looked up once for each set; None where the images are not here."""

    def __init__(self, store: Store) -> None:
        self._known: dict[tuple[Any, ...], dict[str, str] | None] = {}
        self._stored = {run.plan.data for run in store.runs()}

    def of(self, plan: Plan) -> dict[str, str] | None:
        if plan.data not in self._stored:
            return None  # there is nothing to compare with
        where = (plan.data, plan.data_dir, plan.image_size, plan.ood_data, plan.ood_dir)
        key = (*where, plan.seed if plan.ood_data in ("gaussian", "uniform") else None)
        if key not in self._known:
            from osp.engine.data import content_keys

            try:
                self._known[key] = content_keys(plan)
            except UserError:
                self._known[key] = None
        return self._known[key]


def run_jobs(store: Store, jobs: Sequence[Job], workers: int, say: Say, left: Callable[[list[Job]], str]) -> Outcome:
    """Run what is not finished, `workers` at a time; failures are noted and do not stop the rest."""
    outcome = Outcome()
    waiting = [job for job in jobs if store.status(job.plan, job.keys) != "finished"]
    outcome.finished = [job.name for job in jobs if job not in waiting]
    if not waiting:
        return outcome
    store.create()
    total = len(waiting)
    say(f"{total} of {len(jobs)} runs to do{left(waiting)}")
    running: dict[subprocess.Popen[bytes], Job] = {}
    elsewhere: dict[str, float] = {}
    with passing_on(running) as stopped:
        while (waiting or running) and not (stopped() and not running):
            while len(running) < workers and waiting and not stopped():
                job = next_job(store, waiting, elsewhere, outcome, say)
                if job is None:
                    break
                running[start(store, job, workers)] = job
            time.sleep(POLL)
            for process in [each for each in running if each.poll() is not None]:
                job = running.pop(process)
                if not (stopped() and process.returncode in (STOPPED, -signal.SIGTERM)):
                    end(store, job, process.returncode, waiting, elsewhere, outcome)
                if process.returncode in (DONE, 2) or job.name in outcome.failed:
                    done = len(outcome.finished) + len(outcome.failed) - (len(jobs) - total)
                    word = "failed" if job.name in outcome.failed else "done"
                    say(f"{done}/{total} {job.name}: {word}{left([*waiting, *running.values()])}")
        outcome.stopped = stopped()
    return outcome


def next_job(store: Store, waiting: list[Job], elsewhere: dict[str, float], outcome: Outcome, say: Say) -> Job | None:
    """The next run that nobody works on, taken off the list."""
    now = time.monotonic()
    for job in list(waiting):
        if now < elsewhere.get(job.name, 0):
            continue
        status: Status = store.status(job.plan, job.keys)
        if status == "finished":  # another bench has done it
            waiting.remove(job)
            outcome.finished.append(job.name)
        elif status == "running":
            if job.name not in elsewhere:
                say(f"{job.name}: another process works on it")
            elsewhere[job.name] = now + ELSEWHERE_PAUSE
        else:
            waiting.remove(job)
            return job
    return None


def start(store: Store, job: Job, workers: int) -> subprocess.Popen[bytes]:
    """A process for one run; what it prints goes to its log."""
    recipe = job.recipe
    if recipe.threads is None and job.plan.threads is None:
        recipe = recipe.changed(threads=max(1, (os.cpu_count() or 1) // workers))
    command = [sys.executable, "-m", "osp.bench.worker", str(store.root), job.name, str(os.getpid())]
    with open(store.log(job.name), "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )  # a session of its own: Ctrl-C reaches it once, from us
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(recipe.asked()).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already, and its exit code says why
    return process


def end(store: Store, job: Job, code: int, waiting: list[Job], elsewhere: dict[str, float], outcome: Outcome) -> None:
    """Note how a run ended. The store has the last word, since a process may die after its last file."""
    if code == ELSEWHERE:
        elsewhere[job.name] = time.monotonic() + ELSEWHERE_PAUSE
        waiting.append(job)
    elif store.status(job.plan, job.keys) == "finished":
        outcome.finished.append(job.name)
    else:
        folder = store.folder_for(job.plan, job.keys)
        reason = store.failure(folder) or last_line(store.log(job.name)) or f"ended with code {code}"
        outcome.failed[job.name] = reason


def last_line(path: Path) -> str:
    """What a process said last."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("osp: ") if lines else ""


@contextmanager
def passing_on(running: Iterable[subprocess.Popen[bytes]]) -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C and SIGTERM ask the runs to save and end; a second Ctrl-C ends them at once."""
    caught: list[int] = []

    def handler(number: int, frame: object) -> None:
        caught.append(number)
        for process in list(running):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if len(caught) > 1 else signal.SIGTERM)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
