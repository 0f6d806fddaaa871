"""A pool larger than memory: images are read as they are needed, and nothing of their size is kept."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import ctypes
import sys
from pathlib import Path
from osp.bench.workload import Case, MethodStep

def anonymous():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 2**10

before = anonymous()
case = Case("cnn", (1, 16, 16), pool=int(sys.argv[1]))
run = MethodStep("osp", case, Path(sys.argv[2]), 1, {"bank_total": 600})  # a bank has a bound of its own
for _ in range(3):
    run()
assert len(run.loop.method.kept()) == int(sys.argv[1])
kept = anonymous() - before
ctypes.CDLL(None).malloc_trim(0)
print(anonymous() - before, kept)
"""


def memory(pool: int, folder: Path) -> tuple[float, float]:
    """Megabytes of its own (not of mapped files) that a run holds after a pass over the pool and some steps.

    First what it uses, then also what it has freed but not given back, which differs from run to run.
    """
    folder.mkdir()
    command = [sys.executable, "-c", CHILD, str(pool), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    used, held = done.stdout.split()
    return float(used), float(held)


needs_proc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/proc/self/status").exists(), reason="asks Linux for its memory"
)


@needs_proc
@pytest.mark.slow
def test_memory_does_not_grow_with_the_pool(tmp_path: Path) -> None:
    small, large = memory(10_000, tmp_path / "small"), memory(300_000, tmp_path / "large")
    assert large[0] - small[0] < 25  # its images are 77 MB; row numbers and scores take about 40 bytes an image
    assert large[1] - small[1] < 120  # a small tensor kept from each chunk would let 250 MB lie idle between them


@needs_proc
@pytest.mark.nightly
def test_a_million_images_train_in_the_memory_of_a_few(tmp_path: Path) -> None:
    small, large = memory(10_000, tmp_path / "small"), memory(1_000_000, tmp_path / "large")
    assert large[0] - small[0] < 80  # its images are 256 MB; row numbers and scores take about 40 bytes an image
