"""Memory that a step has freed is there for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from osp.engine.devices import keep_freed_memory

CHILD = """
import resource, sys
from pathlib import Path
from osp.bench.workload import CASES, MethodStep

run = MethodStep("osp", CASES["cnn"].changed(pool=1000), Path(sys.argv[1]), 1)
for _ in range(5):
    run()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    run()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")


@glibc
def test_the_allocator_takes_the_setting_unless_the_user_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_freed_memory()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert not keep_freed_memory()


@glibc
def test_a_step_does_not_fetch_its_memory_anew(tmp_path: Path) -> None:
    """Its tensors take over 100 MB, which are 25,000 pages. Without the setting some runs do so, others do not."""
    faults = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        command = [sys.executable, "-c", CHILD, str(tmp_path / str(number))]
        faults.append(float(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout))
    assert max(faults) < 2500
