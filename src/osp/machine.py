"""What this machine has: memory and cores, as far as the system tells; and how its Python is started."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

GIGABYTE = 2**30

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int | None:
    """Bytes of memory that this process may ever have: the machine's, or its container's; None where unknown."""
    found = [limit for path in _CGROUPS if (limit := _number(Path(path))) is not None]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The kind of processor, as far as the system names it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def threads(workers: int, of: int | None = None) -> int:
    """For each of some processes side by side: its share of the cores, but no more than OMP_NUM_THREADS asks for."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most = int(asked) if asked.isdecimal() and int(asked) else None
    each = max(1, (of or cores()) // workers)
    return each if most is None else min(each, most)


def python() -> list[str]:
    """The beginning of every command that starts Python: -P, so that no file of the working folder is imported."""
    return [sys.executable, "-P"]


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """The same for processes whose commands others make: in here, Python is started with PYTHONSAFEPATH."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def in_gigabytes(count: float) -> str:
    """
    >>> in_gigabytes(3 * GIGABYTE), in_gigabytes(0.21 * GIGABYTE), in_gigabytes(1e30)
    ('3 GB', '0.2 GB', 'more than a million GB')
    """
    amount = count / GIGABYTE
    if amount > 1e6:
        return "more than a million GB"
    return f"{amount:,.0f} GB" if amount >= 2 else f"{amount:.1f} GB"


def duration(seconds: float) -> str:
    """In the largest unit that leaves a number above one.

    >>> duration(40), duration(400), duration(40000), duration(4e6)
    ('40 s', '7 min', '11.1 h', '46.3 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or `max`
        return None
