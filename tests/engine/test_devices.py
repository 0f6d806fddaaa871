"""What a run does to its process: memory is kept for the next step, everything else is put back."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import small

from helpers.runs import run
from osp import UserError
from osp.engine import loop
from osp.engine.devices import keep_freed_memory, open_fabric
from osp.recipe import make_plan

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


def test_the_check_of_memory_sees_the_encoder_before_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(
        loop, "check_step", lambda method, *_: seen.append(method.net.encoder._compiled_call_impl is None)
    )
    monkeypatch.setattr(torch, "compile", lambda call, *_, **__: call)
    run(small("supervised", steps=1, compile=True), tmp_path / "run")
    assert seen == [True]


def test_auto_never_means_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert open_fabric(make_plan(small())).device.type == "cpu"
    with pytest.raises(UserError, match="MPS lacks the float64"):
        small(device="mps")


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")


@glibc
def test_the_allocator_takes_the_setting_unless_the_user_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_freed_memory()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert not keep_freed_memory()


@glibc
@pytest.mark.slow
def test_a_step_does_not_fetch_its_memory_anew(tmp_path: Path) -> None:
    """Its tensors take over 100 MB, which are 25,000 pages. Without the setting some runs do so, others do not."""
    faults = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        command = [sys.executable, "-c", CHILD, str(tmp_path / str(number))]
        faults.append(float(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout))
    assert max(faults) < 2500


def test_a_run_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """Threads, cuDNN's search, random numbers, warnings, matplotlib: a library must not change its user's settings."""
    import logging
    import warnings

    import matplotlib as mpl

    import osp

    torch.manual_seed(5)
    filters = list(warnings.filters)
    before = (
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.get_rng_state().tolist(),
        logging.getLogger("lightning_fabric").level,
        mpl.get_backend(auto_select=False),
    )
    osp.train(small(threads=1), tmp_path / "run", progress=False)
    after = (
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.get_rng_state().tolist(),
        logging.getLogger("lightning_fabric").level,
        mpl.get_backend(auto_select=False),
    )
    assert after == before
    assert list(warnings.filters) == filters


def test_a_fault_in_drawing_costs_the_picture_and_not_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import osp
    import osp.report.picture as picture

    def broken(*_: object) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(picture, "draw_result", broken)
    with pytest.warns(UserWarning, match="could not be drawn: RuntimeError: no fonts"):
        run = osp.train(small(), tmp_path / "run", progress=False)
    assert (run.path / "result.json").exists()
    assert not (run.path / "result.png").exists()
