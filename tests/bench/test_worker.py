"""The process of a run: what it runs, where it writes, and when it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.stores import plan_of
from helpers.strangers import METHOD, environment, osp, payload, trap
from osp import Recipe
from osp.bench import worker
from osp.bench.executors import Outcome, Processes, note_end, run_jobs
from osp.bench.jobs import jobs_for
from osp.bench.slurm import write_array
from osp.bench.store import Store
from osp.bench.worker import FAILED, STARTED, Ended, last_line, logged, start
from osp.engine.train import train
from osp.errors import UserError

GRID = "title: t\nmethods: [supervised]\ndatasets: [digits]\nfields: {steps: 2, options: {batch: 8}}\n"


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with modules of a stranger in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    trap(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return folder


@pytest.mark.slow
def test_no_run_of_a_bench_imports_a_module_of_the_working_folder(trapped: Path) -> None:
    (trapped / "g.yaml").write_text(GRID)
    done = osp(trapped, "bench", "g.yaml", "--scale", "demo", "--store", "store", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (trapped / "out/g.md").exists()
    assert not (trapped / "ran").exists()


@pytest.mark.parametrize("fork", [True, False])
def test_a_worker_imports_no_module_of_the_working_folder(
    trapped: Path, tmp_path: Path, fork: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fork:
        monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    store = Store(tmp_path / "store")
    store.create()
    process = start(store, "x", {"method": "no-such"})
    process.join(120)
    assert process.exitcode == FAILED
    assert "Unknown method" in last_line(store.log("x"))
    assert not (trapped / "ran").exists()


def test_the_script_of_an_array_imports_no_module_of_the_working_folder(trapped: Path, tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(data="mnist", data_dir=str(tmp_path / "nowhere"))
    script = write_array(store, jobs_for(store, [plan]), "t", 1, None, 1)
    done = subprocess.run(["bash", script], capture_output=True, text=True, timeout=120, env=environment())
    assert "nowhere" in done.stderr
    assert not (trapped / "ran").exists()


def test_a_run_by_a_method_file_goes_on_in_a_store_and_a_stored_plan_names_no_code(tmp_path: Path) -> None:
    """The file is the one that the bench names: what a plan in the store says instead is refused."""
    (tmp_path / "mine.py").write_text(METHOD)
    plan = plan_of(method=str(tmp_path / "mine.py"), options={"batch": 8})
    store = Store(tmp_path / "store")
    jobs = jobs_for(store, [plan])
    folder = store.folder_for(plan)

    def run() -> dict[str, str]:
        return run_jobs(store, jobs, Processes(store, 1), lambda text: None, lambda waiting: "").failed

    store.create()
    train(Recipe(**plan.recipe), folder.path)
    folder.result.unlink()
    ran = payload(tmp_path / "evil.py")
    whole = folder.plan.read_text()
    for content in (None, plan.method_content):
        changed = plan.changed(method=str(tmp_path / "evil.py"), method_content=content)
        folder.plan.write_text(changed.dump())
        run()
        assert not ran.exists()
    folder.plan.write_text(whole)
    assert run() == {}
    assert folder.read_result() is not None


@pytest.mark.parametrize("fork", [True, False])
def test_no_log_is_written_through_a_link(tmp_path: Path, fork: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})
    store.create()
    name = store.folder_for(plan).path.name
    (victim := tmp_path / "victim").write_text("mine\n")
    store.log(name).symlink_to(victim)
    if not fork:
        monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UserError, match="it is a link"):
        start(store, name, plan.recipe)
    with pytest.raises(UserError, match="it is a link"):
        logged(store.root, name, plan.recipe)
    assert last_line(store.log(name)) == ""
    assert victim.read_text() == "mine\n"


STARTER = """
import json, sys, time
from pathlib import Path
from osp.bench.store import Store
from osp.bench.worker import start
process = start(Store(Path(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3]))
time.sleep(600)
"""


def test_a_worker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(steps=100_000, options={"batch": 8})
    store.create()
    name = store.folder_for(plan).path.name
    bench = subprocess.Popen([sys.executable, "-c", STARTER, str(store.root), name, json.dumps(plan.recipe)])
    try:
        wait_until(lambda: store.status(plan) == "running")
    finally:
        bench.kill()
        bench.wait()
    wait_until(lambda: store.status(plan) != "running")
    assert store.status(plan) in ("missing", "interrupted")


@pytest.mark.skipif(not worker.AUTOGROUP.exists(), reason="the system shares by process")
def test_a_session_of_its_own_is_as_nice_as_the_bench_that_started_it() -> None:
    program = (
        "import os\nfrom osp.bench.worker import AUTOGROUP, keep_nice\n"
        "os.nice(7)\nos.setsid()\nkeep_nice()\nprint(AUTOGROUP.read_text())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-2:] == ["nice", "7"]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_killed_run_is_not_reported_with_the_reason_of_an_earlier_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = Store(tmp_path / "store"), plan_of()
    store.create()
    (job,) = jobs_for(store, [plan])
    store.log(job.name).write_text(f"{STARTED}\nosp: Cannot write model.safetensors: No space left on device.\n")
    assert last_line(store.log(job.name)) == "Cannot write model.safetensors: No space left on device."
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", lambda process: None)  # killed before all else
    start(store, job.name, plan.recipe)
    store.note(store.folder_for(plan), plan, "failed", {}, "the disk is full")
    outcome = Outcome([job], [])
    note_end(store, job, Ended(-9, last_line(store.log(job.name))), outcome, print)
    assert outcome.failed == {job.name: "killed by signal 9"}
