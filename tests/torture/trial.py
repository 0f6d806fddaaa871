"""One trial: a function in a forked child with limits on time and memory, and what became of it.

A fork of a process that has torch imported starts in milliseconds, so that thousands of damaged files can be tried as
the command would meet them: in a process of its own, which may hang, crash or eat memory without harm.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["result", "refused", "traceback", "hang", "memory", "died"]

GOOD: tuple[Kind, ...] = ("result", "refused")
MEGABYTE = 2**20
LIMIT = 2_000
"""Megabytes that no input may take."""
LONGEST_MESSAGE = 4_000
"""Characters of a refusal; a longer one repeats the file it refuses."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    kind: Kind
    text: str
    megabytes: float
    """What the child took beyond its parent, at its largest."""
    seconds: float

    @property
    def good(self) -> bool:
        return self.kind in GOOD

    def __str__(self) -> str:
        return f"{self.kind} ({self.megabytes:.0f} MB, {self.seconds:.1f} s): {self.text[-1500:]}"


def trial(function: Callable[[], Any], seconds: float = 20.0, megabytes: int = LIMIT) -> Outcome:
    """Run the function in a child: a value is a result, a UserError a refusal, anything else a defect."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(function, writer, megabytes)
    os.close(writer)
    text = b""
    try:
        while (left := started + seconds - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                block = os.read(reader, 1 << 16)
                if not block:
                    break
                text += block
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    taken = time.monotonic() - started
    if os.WIFSIGNALED(status):
        kind: Kind = "hang" if taken >= seconds else "died"
        return Outcome(kind, f"signal {os.WTERMSIG(status)}", 0.0, taken)
    try:
        said = json.loads(text)
    except ValueError:
        return Outcome("died", f"exit code {os.waitstatus_to_exitcode(status)} without a word", 0.0, taken)
    if said["megabytes"] > megabytes:
        said["kind"] = "memory"
    return Outcome(said["kind"], said["text"], said["megabytes"], taken)


def read_one(function: Callable[[], Any]) -> tuple[Kind, str]:
    """What a function gives: a value is a result, a UserError a refusal, anything else a defect."""
    from osp.errors import UserError

    try:
        return "result", type(function()).__name__
    except UserError as error:
        text = str(error)
        return "refused" if len(text) <= LONGEST_MESSAGE else "traceback", text[: 2 * LONGEST_MESSAGE]
    except BaseException as error:
        return "traceback", "".join(traceback.format_exception(error))[-4000:]


def _in_child(function: Callable[[], Any], writer: int, megabytes: int) -> None:
    before = _largest()
    # Far above the limit: what takes too much must be seen, not turned into a MemoryError that somebody catches.
    with contextlib.suppress(OSError, ValueError):
        most = _virtual() + 4 * megabytes * MEGABYTE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    kind, text = read_one(function)
    os.write(writer, json.dumps({"kind": kind, "text": text, "megabytes": _largest() - before}).encode())
    os._exit(kind == "traceback")


def _largest() -> float:
    """Megabytes of memory at its largest since the fork."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _virtual() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
