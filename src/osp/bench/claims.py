"""Who works on a run: one process, on whichever machine of those that share the store's disk.

Within one machine a claim is an operating-system lock, which vanishes with its process: nothing needs to be cleaned up
after a crash. Between machines such locks reach over some network disks and not over others, so that a claim also has a
file beside its lock, `<name>.claim`, which says on which machine it is held and whose time of change its holder renews
every few seconds. A claim of this machine counts as long as its lock is held. One of another machine counts until it
has been silent for `SILENT` seconds: then its process, its machine or its disk is gone, and the run is free.

Both times of that comparison are the disk's own: machines whose clocks differ agree on it. Should two machines take
over the same silent claim at the same moment, or a holder wake up after a long sleep, the one that finds another's mark
in the file stops: it saves and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from osp.errors import UserError
from osp.files import owned, replace

BEAT = 15.0
"""Seconds between two signs of life."""
SILENT = 240.0
"""Seconds without one after which a claim is void. Network disks show changes up to a minute late."""
SETTLE = 1.0
"""Seconds after which whoever took over a silent claim looks whether another machine did so too."""


def this_machine() -> str:
    """The same for all processes among which the system's locks hold: those of one running kernel."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node()


def stop_this_process() -> None:
    """As if it had been asked to: a run saves and ends."""
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGTERM)  # also wakes the main thread where it waits
    else:
        signal.raise_signal(signal.SIGTERM)  # there `os.kill` ends a process unasked


class Claims:
    """The claims of one store."""

    def __init__(self, folder: Path, machine: str | None = None) -> None:
        self.folder, self.machine = folder, machine or this_machine()

    def lock(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def mark(self, name: str) -> Path:
        return self.folder / f"{name}.claim"

    def held(self, name: str) -> bool:
        """Whether a process works on this run, here or elsewhere."""
        return is_locked(self.lock(name)) or self.held_elsewhere(name)

    def held_elsewhere(self, name: str) -> bool:
        """Whether a process of another machine does, as far as can be told from its last sign of life."""
        mark = self.mark(name)
        try:
            return _machine_of(mark) not in (None, self.machine) and self._now() - mark.stat().st_mtime <= SILENT
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def hold(self, name: str, busy: str, lost: Callable[[], None] = stop_this_process) -> Iterator[None]:
        """Be the only process that works on this run, or refuse with the sentence `busy`.

        `lost` is called where another machine has taken the claim over meanwhile.
        """
        with owned(self.lock(name), busy):
            mark, content = self.mark(name), json.dumps({"machine": self.machine, "holder": uuid.uuid4().hex}).encode()
            if not self._take(name, content):
                raise UserError(busy)
            ended = threading.Event()
            beating = threading.Thread(target=_beat, args=(mark, content, ended, lost), daemon=True)
            beating.start()
            try:
                yield
            finally:
                ended.set()
                beating.join()
                if _content(mark) == content:
                    mark.unlink(missing_ok=True)

    def _take(self, name: str, content: bytes) -> bool:
        """Put our mark there, unless another machine's claim counts.

        It is linked into place, filled: on network disks, too, only one process can be the first, and one that is
        killed on the way leaves no claim that nothing renews.
        """
        mark, filled = self.mark(name), self.folder / f".{uuid.uuid4().hex}.claim"
        try:
            filled.write_bytes(content)  # on a full disk this fails, and there is no mark
            try:
                os.link(filled, mark)
                return True
            except OSError:  # there is one, or the disk has no links
                if self.held_elsewhere(name):
                    return False
            ours = _machine_of(mark) == self.machine  # and its lock is held by us: its process is gone
            os.replace(filled, mark)
        except OSError as error:
            raise UserError(f"Cannot claim a run in {self.folder}: {error.strerror or error}.") from error
        finally:
            filled.unlink(missing_ok=True)
        if not ours:
            time.sleep(SETTLE)
        return _content(mark) == content

    def _now(self) -> float:
        """The time by the clock of the disk; by our own where nothing can be written."""
        try:
            with tempfile.NamedTemporaryFile(prefix=".now-", dir=self.folder) as file:
                file.write(b".")
                file.flush()
                return os.stat(file.name).st_mtime
        except OSError:
            return time.time()


def is_locked(lock: Path) -> bool:
    """Whether a process holds this lock file."""
    if not lock.exists():
        return False
    try:
        with owned(lock, "busy"):
            return False
    except UserError as error:
        return str(error) == "busy"


def _beat(mark: Path, content: bytes, ended: threading.Event, lost: Callable[[], None]) -> None:
    """Signs of life until the claim is given back, or somebody else has it."""
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):  # a disk that is away for a moment; if for long, the claim is lost
            if _content(mark) not in (content, None):
                lost()
                return
            if not mark.exists():
                replace(mark, content)
            os.utime(mark)


def _machine_of(mark: Path) -> str | None:
    """Where a claim is held; nothing where there is none. One that cannot be read is being written elsewhere."""
    try:
        return str(json.loads(mark.read_bytes())["machine"])
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        return ""


def _content(mark: Path) -> bytes | None:
    try:
        return mark.read_bytes()
    except OSError:
        return None
