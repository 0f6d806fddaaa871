"""The harnesses of `make torture` in their short form: a few kills, damaged files and attacks of each kind."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
from pathlib import Path

import pytest

from osp import UserError
from torture import attack
from torture.kill import at_calls, tracer, works
from torture.trial import trial

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and /proc")


@pytest.mark.parametrize("name", ["sort", "undo", "store", "unpack"])
def test_work_killed_at_system_calls_is_taken_up_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    strace = tracer()
    if strace is None:
        pytest.skip("strace is not there")
    (work,) = works([name])
    found = at_calls(work, tmp_path, strace, 3, random.Random(0))
    assert found.tried == 3
    assert not found.faults


def test_the_trial_tells_a_result_a_refusal_a_traceback_a_hang_and_gluttony() -> None:
    def refuse() -> None:
        raise UserError("no")

    def hang() -> None:
        while True:
            pass

    def eat() -> None:  # pages of its own: this process may hold freed memory that a child would use again
        held = mmap.mmap(-1, 200 << 20)
        held.write(b"x" * len(held))

    assert trial(lambda: 1).kind == "result"
    assert trial(refuse).kind == "refused"
    assert trial(lambda: [][1]).kind == "traceback"
    assert trial(hang, seconds=0.5).kind == "hang"
    assert trial(eat, megabytes=100).kind == "memory"


def test_hostile_files_are_refused_without_a_trace(tmp_path: Path) -> None:
    tried = [(name, case) for name, case in attack.cases(tmp_path / "attack") if "report" not in name]
    faults = {name: fault for name, case in tried if "image" not in name and (fault := case())}
    assert len(tried) > 25
    assert not faults


def test_the_long_form_runs_from_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torture", "--cases", "3", "--keep", str(tmp_path), "attack", "--help"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--kills" in done.stdout
