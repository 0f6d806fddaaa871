"""Kill a piece of work at any moment, take it up again, and compare with one that nobody killed.

Each attempt runs in a fork of this process. It is ended by SIGKILL after a random time, or, where `strace` is there, at
the n-th call of a chosen system call that changes a file: just before it takes effect, so that every state of the disk
between two such calls is met.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    *("write", "pwrite64", "writev", "openat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "link"),
    *("linkat", "symlink", "symlinkat", "mkdir", "mkdirat", "rmdir", "ftruncate", "fsync", "fdatasync", "chmod"),
    *("fchmod", "fchmodat", "sendfile", "copy_file_range"),
)
"""System calls that change files or folders, or see them safely on the disk."""

PATIENCE = 300.0
"""Seconds that one attempt may take on a machine that is busy with other things."""


@dataclass(frozen=True)
class Work:
    """Something that is killed: `act` in a prepared folder, `recover` in what is left, `check` against the good one."""

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    recover: Callable[[Path], None]
    check: Callable[[Path, Path], None]
    """check(folder, reference): AssertionError where something was lost."""
    alone: bool = True
    """Whether it does all its work in one process; else its kills at random moments take every other time all of its
    processes, as a power cut would, and it is not killed at system calls."""
    costly: bool = False
    """Takes many seconds: it is killed a fifth as often."""


@dataclass
class Tally:
    """What came of many kills."""

    tried: int = 0
    killed: int = 0
    """Attempts that were still at work when the signal came."""
    lost: int = 0
    faults: tuple[str, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.tried + other.tried, self.killed + other.killed, self.lost + other.lost, self.faults + other.faults
        )


def tracer() -> str | None:
    """The path of strace, where it may trace."""
    found = shutil.which("strace")
    if found is None:
        return None
    tried = subprocess.run([found, "-e", "trace=none", "true"], capture_output=True, check=False)
    return found if tried.returncode == 0 else None


def reference(work: Work, base: Path) -> Path:
    """The folder of the same work, done in peace."""
    folder = base / f"{_plain(work.name)}-reference"
    if not folder.exists():
        folder.mkdir(parents=True)
        work.prepare(folder)
        assert attempt(work.act, folder) == 0, f"{work.name} does not even work in peace"
    return folder


def attempt(
    function: Callable[[Path], None],
    folder: Path,
    watch: Callable[[int], None] | None = None,
    kill_after: float | None = None,
    family: bool = False,
) -> int:
    """Run a function in a fork, told to go once `watch` (given its process) is ready. Its exit code, or -signal.

    `kill_after` so many seconds it is killed, with `family` all processes that it has started too.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        code = 1
        try:
            os.read(reader, 1)
            _quiet()
            function(folder)
            code = 0
        except BaseException as error:
            (folder.parent / f"{folder.name}.error").write_text(f"{type(error).__name__}: {error}", "utf-8")
        finally:
            os._exit(code)
    os.close(reader)
    try:
        if watch is not None:
            watch(child)
    finally:
        os.close(writer)
    started = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        passed = time.monotonic() - started
        if passed > PATIENCE:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"{folder.name} hangs")
        if kill_after is not None and passed >= kill_after:
            for process in [*(descendants(child) if family else ()), child]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            kill_after = None
        time.sleep(min(0.005, max(0.0, (kill_after or 1.0) - passed)))


def descendants(process: int) -> list[int]:
    """All processes that this one and its children have started, as far as they still are its family."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text("ascii").split()):
                found += [child, *descendants(child)]
    return found


def _quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def calls_of(work: Work, base: Path, strace: str) -> list[tuple[str, int]]:
    """Every call of the work's own thread that changes a file, as (call, the how many-th of that name)."""
    folder, log = base / f"{_plain(work.name)}-traced", base / f"{_plain(work.name)}.trace"
    folder.mkdir(parents=True)
    work.prepare(folder)
    tracers: list[subprocess.Popen[bytes]] = []
    children: list[int] = []

    def watch(child: int) -> None:
        children.append(child)
        tracers.append(_attach(strace, child, ["-o", str(log), "-e", f"trace={','.join(map(_maybe, CALLS))}"]))

    assert attempt(work.act, folder, watch) == 0
    tracers[0].wait(timeout=60)
    counts: Counter[str] = Counter()
    places = []
    for line in log.read_text("utf-8", errors="replace").splitlines():
        found = re.match(r"(\d+) +(\w+)\(", line)
        if found is None or int(found[1]) != children[0]:  # strace counts each thread's calls apart
            continue
        counts[found[2]] += 1
        if found[2] != "openat" or "O_CREAT" in line:
            places.append((found[2], counts[found[2]]))
    return places


def _maybe(call: str) -> str:
    return f"?{call}"  # strace passes over a call that this machine does not have


def _attach(strace: str, child: int, options: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([strace, "-f", "-p", str(child), *options], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()  # "Process N attached"
    return process


def at_calls(work: Work, base: Path, strace: str, most: int, draws: random.Random) -> Tally:
    """Kill at up to `most` of the calls, spread over all of them; every one where there are no more."""
    places = calls_of(work, base, strace)
    chosen = places if len(places) <= most else sorted(draws.sample(places, most))
    total = Tally()
    watchers: list[subprocess.Popen[bytes]] = []
    for call, number in chosen:

        def watch(child: int, call: str = call, number: int = number) -> None:
            inject = f"inject={call}:signal=KILL:when={number}"
            watchers.append(_attach(strace, child, ["-o", os.devnull, "-e", f"trace={call}", "-e", inject]))

        total += _one(work, base, f"{call}-{number}", watch)
        with suppress(subprocess.TimeoutExpired):
            watchers.pop().wait(timeout=30)
    return total


def at_random(work: Work, base: Path, kills: int, draws: random.Random) -> Tally:
    """Kill at random moments until `kills` have met the work going on; a moment after its end counts as tried alone."""
    longest = duration(work, base)
    total = Tally()
    while total.killed < kills and total.tried < 4 * kills:
        family = not work.alone and total.tried % 2 == 1
        started = time.monotonic()
        found = _one(work, base, f"random-{total.tried}", kill_after=draws.uniform(0, longest), family=family)
        if not found.killed:  # the machine was busier when the time was taken
            longest = min(longest, time.monotonic() - started)
        total += found
    return total


def duration(work: Work, base: Path) -> float:
    """Seconds that the work alone takes, its preparation left out, in the shorter of two attempts."""
    taken = []
    for number in range(2):
        folder = base / f"{_plain(work.name)}-timed-{number}-{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        work.prepare(folder)
        started = time.monotonic()
        assert attempt(work.act, folder) == 0, f"{work.name} does not even work in peace"
        taken.append(time.monotonic() - started)
        shutil.rmtree(folder)
    return min(taken)


def _one(
    work: Work,
    base: Path,
    label: str,
    watch: Callable[[int], None] | None = None,
    kill_after: float | None = None,
    family: bool = False,
) -> Tally:
    good = reference(work, base)
    folder = base / f"{_plain(work.name)}-{label}"
    folder.mkdir(parents=True)
    work.prepare(folder)
    code = attempt(work.act, folder, watch, kill_after, family)
    fault = ""
    if code not in (0, -signal.SIGKILL):
        fault = "failed by itself"
    elif code != 0 and attempt(work.recover, folder) != 0:
        fault = "could not be taken up"
    if fault:
        note = folder.parent / f"{folder.name}.error"
        fault += f": {note.read_text('utf-8')[:300]}" if note.exists() else ""
    else:
        try:
            work.check(folder, good)
        except AssertionError as error:
            fault = str(error)[:300] or "differs"
    if not fault:
        shutil.rmtree(folder)
    faults = (f"{work.name} at {label}: {fault}",) if fault else ()
    with open(base / "kills.txt", "a", encoding="utf-8") as file:  # for whoever breaks a long form off
        file.write(f"{work.name}\t{label}\t{'landed' if code != 0 else 'late'}\t{fault or 'nothing lost'}\n")
    return Tally(1, int(code != 0), len(faults), faults)


def _plain(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def works(names: list[str] | None = None) -> Iterator[Work]:
    """All that is killed, or those of these names."""
    from torture.works import all_works

    for work in all_works():
        if names is None or work.name in names:
            yield work
