"""Benches that are killed, stopped, run twice at once, and whose runs fail: the table is the same, and nothing is lost.

Real runs of a few steps on digits, in processes of their own as users have them.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.commands import osp
from helpers.stores import finished, plan_of
from osp.bench.executors import Processes, run_jobs
from osp.bench.jobs import Job, jobs_for
from osp.bench.store import Store
from osp.bench.worker import FOUND, Ended, work

GRID = """
title: tiny
methods: [supervised, fixmatch]
datasets: [digits]
ratios: [0.6]
fields: {steps: 12, eval_every: 3, options: {batch: 8}}
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(GRID)
    return path


def command(grid: Path, store: str, *more: str) -> list[str]:
    words = ["--scale", "demo", "--seeds", "0-1", "--store", str(grid.parent / store), "--out"]
    return ["bench", str(grid), *words, str(grid.parent / f"{store}-out"), *more]


def start(grid: Path, store: str, *more: str) -> subprocess.Popen[bytes]:
    log = open(grid.parent / f"{store}.log", "ab")  # noqa: SIM115
    return subprocess.Popen([sys.executable, "-m", "osp", *command(grid, store, *more)], stdout=log, stderr=log)


def numbers(grid: Path, store: str) -> list[Any]:
    """The table's accuracies by seed, which do not depend on the time it took."""
    found = json.loads((grid.parent / f"{store}-out" / "tiny.json").read_text())
    return [(cell["row"], cell["column"], cell["values"]) for cell in found["cells"] if cell["measure"] == "accuracy"]


def steps_done(store: Path) -> int:
    """Lines of metrics in a store."""
    return sum(len(path.read_bytes().splitlines()) for path in store.glob("*/metrics.jsonl"))


@pytest.mark.nightly
def test_a_bench_killed_at_random_moments_and_continued_gives_the_same_table(grid: Path) -> None:
    assert start(grid, "whole").wait() == 0
    moments, store = random.Random(0), grid.parent / "killed"
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        bench, until = start(grid, "killed", "--jobs", "2"), steps_done(store) + moments.randint(1, 20)
        while bench.poll() is None and steps_done(store) < until:
            time.sleep(0.02)
        bench.send_signal(number)
        assert bench.wait() in (130, -number, 0)  # 0: it was faster
    assert start(grid, "killed").wait() == 0
    assert numbers(grid, "killed") == numbers(grid, "whole")
    assert all(len(values) == 2 for _, _, values in numbers(grid, "killed"))


@pytest.mark.slow
def test_two_benches_at_once_share_the_store_and_run_nothing_twice(grid: Path) -> None:
    benches = [start(grid, "shared"), start(grid, "shared")]
    assert [bench.wait() for bench in benches] == [0, 0]
    store = grid.parent / "shared"
    folders = [path for path in store.iterdir() if (path / "result.json").exists()]
    assert len(folders) == 4
    for folder in folders:
        steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(steps)
    log = (grid.parent / "shared.log").read_text()
    assert log.count(": done") == 4  # each run was done by one of the two


def run_all(store: Store, *plans: Any) -> Any:
    return run_jobs(store, jobs_for(store, plans), Processes(store, 2), lambda text: None, lambda jobs: "")


def test_a_failed_run_is_reported_and_does_not_stop_the_rest_and_is_tried_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    good = plan_of(options={"batch": 8})
    bad = plan_of(data="mnist", data_dir=str(tmp_path / "nowhere"), options={"batch": 8})
    for _ in range(2):
        outcome = run_all(store, bad, good)
        assert outcome.finished == [store.folder_for(good).path.name]
        assert "nowhere" in outcome.failed[store.folder_for(bad).path.name]
    assert store.status(bad) == "failed"
    assert "nowhere" in store.failure(store.folder_for(bad))


def test_a_run_that_another_finished_before_the_claim_is_neither_touched_nor_announced(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})

    class Overtaken(Processes):
        def start(self, job: Job) -> None:
            finished(store, plan)  # by another bench, after this one had found the run missing
            super().start(job)

    said: list[str] = []
    jobs = jobs_for(store, [plan])
    outcome = run_jobs(store, jobs, Overtaken(store, 1), said.append, lambda waiting: "")
    assert outcome.finished == [jobs[0].name]
    assert said == ["1 of 1 runs to do"]
    files = {path.name for path in (store.root / jobs[0].name).iterdir()}
    assert files == {"plan.yaml", "data.json", "result.json"}
    assert work(store.root, jobs[0].name, plan.recipe) == FOUND


def test_a_run_that_a_signal_to_all_processes_has_ended_is_no_failure(tmp_path: Path) -> None:
    """`timeout` and Ctrl-C reach the runs as well as the bench, and these may end in a way of their own."""

    class Signaled(Processes):
        def start(self, job: Job) -> None:
            self.job: Job | None = job
            signal.raise_signal(signal.SIGTERM)

        def running(self) -> list[Job]:
            return [self.job] if self.job else []

        def ended(self) -> list[tuple[Job, Ended]]:
            job, self.job = self.job, None
            return [(job, Ended(255, ""))] if job else []

    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})
    said: list[str] = []
    outcome = run_jobs(store, jobs_for(store, [plan]), Signaled(store, 1), said.append, lambda waiting: "")
    assert outcome.stopped
    assert not outcome.failed
    assert said == ["1 of 1 runs to do"]


def test_a_result_of_another_version_is_reported_and_not_tried_for_ever(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})
    finished(store, plan, versions={**plan.versions, "method": "0"})
    assert store.status(plan) != "finished"
    assert list(run_all(store, plan).failed) == [store.folder_for(plan).path.name]


def test_damaged_files_are_set_aside_and_made_anew(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})
    run_all(store, plan)
    first = store.find(plan)
    assert first is not None
    first.folder.result.write_text("{")
    assert not run_all(store, plan).failed
    again = store.find(plan)
    assert again is not None
    assert again.result["accuracy"] == first.result["accuracy"]
    assert (again.folder.path / "result.damaged").read_text() == "{"
    first.folder.plan.write_text("steps: many")
    assert not run_all(store, plan).failed
    assert store.status(plan) == "finished"
    assert [path for path in store.root.iterdir() if path.name.startswith(".damaged-")]


def test_a_further_ood_set_is_tested_without_training_again(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})
    run_all(store, plan)
    first = store.find(plan)
    assert first is not None
    wanted = plan_of(options={"batch": 8}, test_ood="uniform")
    assert not run_all(store, wanted).failed
    found = store.find(wanted)
    assert found is not None
    assert 0 <= found.result["other_ood"]["uniform"]["auroc"] <= 100
    assert found.result["accuracy"] == first.result["accuracy"]
    assert found.folder.read_metrics() == first.folder.read_metrics()


@pytest.mark.slow
def test_a_full_disk_fails_one_run_with_a_sentence_and_leaves_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    kept, plan = finished(store, plan_of(seed=1)), plan_of(options={"batch": 8})
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    job = jobs_for(store, [plan])[0]
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from pathlib import Path\nfrom osp.bench.worker import work\nimport json\n"
        "sys.exit(work(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))"
    )
    words = [sys.executable, "-c", program, str(store.root), job.name, json.dumps(plan.recipe)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "Cannot write" in ended.stderr
    assert store.status(plan) == "failed"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert not run_all(store, plan).failed


def test_dry_run_status_and_list_start_nothing(grid: Path) -> None:
    for only in ("--dry-run", "--no-run"):
        ended = osp(grid.parent, *command(grid, "none", only))
        assert ended.returncode == 0, ended.stderr
    assert not (grid.parent / "none").exists()


def test_a_stop_while_a_process_is_being_made_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Processes(Store(tmp_path / "store"), 1)
    stopped: list[object] = []

    def slow(*given: object) -> object:
        executor.stop(at_once=False)  # as a signal's handler would
        return given[1]

    monkeypatch.setattr("osp.bench.executors.worker.start", slow)
    monkeypatch.setattr("osp.bench.executors.worker.stop", lambda process, at_once=False: stopped.append(process))
    executor.start(Job(plan=plan_of(), name="one"))
    assert stopped == ["one"]
