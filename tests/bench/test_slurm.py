"""Array jobs, with a stand-in for `sbatch` that really runs the script: its tasks side by side, as a cluster would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.commands import osp
from helpers.stores import finished, plan_of
from osp.bench.jobs import Job, jobs_for
from osp.bench.slurm import failed_since, read_list, write_array
from osp.bench.store import Store
from osp.errors import UserError

GRID = """
title: tiny
methods: [supervised, fixmatch]
datasets: [digits]
ratios: [0.6]
fields: {steps: 12, eval_every: 3, options: {batch: 8}}
"""

SBATCH = f"""#!{sys.executable}
import os, re, subprocess, sys
script = sys.argv[-1]
text = open(script).read()
first, last = map(int, re.search(r"--array=(\\d+)-(\\d+)", text).groups())
log = open(os.environ["TASKS_LOG"], "a")
for number in range(first, last + 1):
    subprocess.Popen(["bash", script], env={{**os.environ, "SLURM_ARRAY_TASK_ID": str(number)}},
                     stdout=log, stderr=log, start_new_session=True)
print("Submitted batch job 7")
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a grid file, and an `sbatch` on the path."""
    (tmp_path / "tiny.yaml").write_text(GRID)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TASKS_LOG", str(tmp_path / "tasks.log"))
    return tmp_path


def bench(folder: Path, store: str, *more: str) -> str:
    words = ["--scale", "demo", "--store", str(folder / store), "--out", str(folder / f"{store}-out")]
    command = [sys.executable, "-m", "osp", "bench", str(folder / "tiny.yaml"), *words, *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def wait_for(log: Path, finished: int) -> None:
    until = time.monotonic() + 240
    while log.read_text().count(": done") < finished and time.monotonic() < until:
        time.sleep(0.2)


@pytest.mark.slow
def test_an_array_submitted_twice_does_everything_once_and_gives_the_local_table(slurm: Path) -> None:
    bench(slurm, "local")
    assert "Submitted batch job 7" in bench(slurm, "store", "--slurm")
    again = bench(slurm, "store", "--slurm")
    assert "Submitted batch job 7" in again or "nothing was submitted" in again  # where the first was quick
    log = slurm / "tasks.log"
    wait_for(log, 2)
    time.sleep(1)
    said = log.read_text().splitlines()
    done = [line.split()[1] for line in said if line.endswith(": done")]
    assert len(done) == len(set(done)) == 2, said
    for name in done:
        steps = [json.loads(line)["step"] for line in (slurm / "store" / name.strip(":") / "metrics.jsonl").open()]
        assert steps == sorted(steps)
        assert steps.count(12) == 2  # one line of the log, one of the evaluation: trained once
    tables = [json.loads((slurm / f"{name}-out" / "tiny.json").read_text()) for name in ("local",)]
    bench(slurm, "store", "--no-run")
    tables.append(json.loads((slurm / "store-out" / "tiny.json").read_text()))
    one, other = ([cell["values"] for cell in table["cells"] if cell["measure"] == "accuracy"] for table in tables)
    assert one == other
    assert all(one)
    assert "nothing was submitted" in bench(slurm, "store", "--slurm")


def jobs(store: Store, *seeds: int) -> list[Job]:
    plans = [plan_of(seed=seed, options={"batch": 8}) for seed in seeds]
    return jobs_for(store, plans)


def test_the_script_says_what_a_run_needs_and_survives_odd_names(tmp_path: Path) -> None:
    store = Store(tmp_path / "a store's $HOME 100%")
    script = write_array(store, jobs(store, 0, 1, 2), "my table; rm -rf", cpus=3, gpus=0.5, at_once=2)
    text = script.read_text()
    for line in ("--array=0-2%2", "--cpus-per-task=3", "--gpus=1", "--job-name=osp-my-table-rm-rf", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    words = subprocess.run(
        ["bash", "-c", "exec() { printf '%s\\n' \"$@\"; }; source \"$0\"", str(script)],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert words[4] == str(store.root)
    assert read_list(Path(words[5])) == [job.anywhere() for job in jobs(store, 0, 1, 2)]
    assert re.search(r'--output="[^"]*100%%/\.logs/slurm-%A_%a\.log"', text)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_a_store_that_would_change_the_script_is_refused(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    with pytest.raises(UserError, match="name another --store"):
        write_array(store, [], "x", 1, None, 1)


def test_more_runs_than_an_array_may_have_tasks_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osp.bench.slurm.LARGEST_ARRAY", 2)
    store = Store(tmp_path / "store")
    assert "--array=0-1\n" in write_array(store, jobs(store, 0, 1, 2), "x", 1, None, 1).read_text()


def test_what_failed_after_the_list_was_written_is_not_tried_by_other_tasks(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    job = jobs(store, 0)[0]
    listed = write_array(store, [job], "x", 1, None, 1).with_suffix(".jsonl")
    assert not failed_since(store, job, listed)
    store.note(store.folder_for(job.plan), job.plan, "failed", {}, "no")
    assert failed_since(store, job, listed)
    later = time.time() + 10
    os.utime(listed, (later, later))  # written again: it may be tried again
    assert not failed_since(store, job, listed)


def test_an_sbatch_that_refuses_is_told_with_its_reason(slurm: Path) -> None:
    (slurm / "bin" / "sbatch").write_text("#!/bin/sh\necho 'error: invalid account' >&2; exit 1")
    words = ["--scale", "demo", "--store", str(slurm / "store"), "--slurm"]
    ended = osp(slurm, "bench", slurm / "tiny.yaml", *words)
    assert ended.returncode == 2
    assert "invalid account" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_damaged_list_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="cannot be read"):
        read_list(tmp_path / "list.jsonl")


def test_finished_runs_are_not_listed(tmp_path: Path) -> None:
    from osp.bench.jobs import unfinished

    store = Store(tmp_path / "store")
    finished(store, plan_of(seed=0, options={"batch": 8}))
    assert [job.plan.seed for job in unfinished(store, jobs(store, 0, 1))] == [1]
