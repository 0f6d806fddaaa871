"""A table on a real Ray cluster of several nodes on this machine, one of which is killed while it works."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.stores import finished, plan_of
from osp.bench.executors import run_jobs
from osp.bench.jobs import jobs_for
from osp.bench.on_ray import Nodes, carry_out, check_answers, proof_in, take_in
from osp.bench.store import Store
from osp.bench.worker import BUSY, DONE, FAILED, Ended
from osp.errors import UserError
from osp.version import HARNESS_VERSION

GRID = """
title: tiny
methods: [supervised, fixmatch]
datasets: [digits]
ratios: [0.6]
fields: {steps: 60, eval_every: 10, log_every: 1, options: {batch: 8}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores and two nodes of one core each."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - else others on this machine come first
    from ray.cluster_utils import Cluster

    soon = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 0}
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 * 2**20, "_system_config": soon}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield found
    finally:
        found.shutdown()


def start(folder: Path, store: str, *more: str) -> subprocess.Popen[bytes]:
    (folder / "tiny.yaml").write_text(GRID)
    words = ["--scale", "demo", "--seeds", "0-1", "--store", str(folder / store), "--out", str(folder / f"{store}-out")]
    log = open(folder / f"{store}.log", "ab")  # noqa: SIM115
    command = [sys.executable, "-m", "osp", "bench", str(folder / "tiny.yaml"), *words, *more]
    return subprocess.Popen(command, stdout=log, stderr=log)


def numbers(folder: Path, store: str) -> list[Any]:
    found = json.loads((folder / f"{store}-out" / "tiny.json").read_text())
    return [(cell["row"], cell["column"], cell["values"]) for cell in found["cells"] if cell["measure"] == "accuracy"]


def at_work(store: Path) -> int:
    """Runs that have begun and are not finished."""
    return sum(not (path.parent / "result.json").exists() for path in store.glob("*/metrics.jsonl"))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_table_is_whole_and_the_local_one_although_a_node_is_killed(cluster: Any, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    bench = start(tmp_path, "ray", "--ray", cluster.address)
    until = time.monotonic() + 600
    while at_work(tmp_path / "ray") < 2 and bench.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    cluster.remove_node(nodes[1], allow_graceful=False)  # both nodes were at work
    assert bench.wait(1500) == 0, (tmp_path / "ray.log").read_text()
    log = (tmp_path / "ray.log").read_text()
    assert "its node was lost" in log
    assert "raylet" not in log  # Ray's own words
    assert log.count(": done") == 4
    assert start(tmp_path, "local").wait(1500) == 0
    assert numbers(tmp_path, "ray") == numbers(tmp_path, "local")
    assert all(len(values) == 2 for _, _, values in numbers(tmp_path, "ray"))


@pytest.mark.slow
def test_a_node_on_another_disk_sends_its_run_back(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(options={"batch": 8})
    name = store.folder_for(plan).path.name
    with proof_in(store):
        returned = carry_out(str(store.root), ".claims/.shared-with-others", name, plan.recipe, HARNESS_VERSION, {})
    assert returned.code == DONE, returned.log
    assert store.status(plan) == "missing"
    take_in(store, name, returned)
    assert store.status(plan) == "finished"
    assert {"plan.yaml", "result.json", "metrics.jsonl", "model.safetensors"} <= set(returned.files)
    take_in(store, name, returned)  # of a second bench: the first one's run is kept
    assert [path.name for path in store.root.iterdir() if path.name.startswith(".earlier-")]


def test_a_node_with_another_harness_does_nothing(tmp_path: Path) -> None:
    returned = carry_out(str(tmp_path), "", "name", {}, HARNESS_VERSION + 1, {})
    assert returned.code == FAILED
    assert "install the same osp" in returned.said


def test_files_of_a_node_stay_in_their_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for name in ("../outside", "/etc/outside", "a/../../outside"):
        with pytest.raises(UserError, match="would land outside"):
            take_in(store, "run", Ended(DONE, files={name: b"x"}))
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:99999", "ray://", "host:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="an address is HOST:PORT"):
        check_answers(address)


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def test_where_nothing_answers_it_is_said_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match="no Ray answers there"):
        check_answers(f"127.0.0.1:{free_port()}")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_another_server_is_no_ray(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osp.bench.on_ray.ANSWER", 1.0)
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        line, _ = server.accept()
        held.append(line)
        if answer:
            line.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    with server, pytest.raises(UserError, match="no Ray answers there"):
        check_answers(f"127.0.0.1:{server.getsockname()[1]}")


def test_the_command_says_that_no_ray_answers_and_ends(tmp_path: Path) -> None:
    bench = start(tmp_path, "none", "--ray", f"127.0.0.1:{free_port()}")
    assert bench.wait(120) == 2
    log = (tmp_path / "none.log").read_text()
    installed = importlib.util.find_spec("ray") is not None
    assert ("no Ray answers there" if installed else "[ray]'") in log
    assert "Traceback" not in log


class StandIn:
    """Stands for Ray: a task is done at once, in this process, or lost with its node."""

    class exceptions:
        RayError = type("RayError", (Exception,), {})
        TaskCancelledError = type("TaskCancelledError", (RayError,), {})
        RayTaskError = type("RayTaskError", (RayError,), {})

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.given: list[tuple[Any, ...]] = []

    def remote(self, **needs: Any) -> Any:
        return lambda function: self

    def options(self, name: str) -> Any:
        def begin(*given: Any) -> int:
            self.given.append(given)
            return len(self.given)

        return SimpleNamespace(remote=begin)

    def wait(self, tasks: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return tasks, []

    def get(self, task: int) -> Any:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def test_a_lost_node_is_told_and_its_run_started_again(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(steps=7)
    (job,) = jobs_for(store, [plan])
    elsewhere = Store(tmp_path / "elsewhere")
    folder = finished(elsewhere, plan)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    ray = StandIn(StandIn.exceptions.RayError(), Ended(DONE, files=files, log="said\n"))
    said: list[str] = []
    outcome = run_jobs(store, [job], Nodes(ray, store, "", 3, 0.0), said.append, lambda jobs: "")
    assert outcome.finished == [job.name]
    assert store.status(plan) == "finished"
    assert store.log(job.name).read_text() == "said\n"
    assert said[1] == f"{job.name}: its node was lost (RayError); it is started again (1 of 5 times)"
    assert said[2] == f"1/1 {job.name}: done"
    assert [given[3] for given in ray.given] == [job.anywhere().recipe(3)] * 2


def test_what_came_from_a_node_is_kept_where_another_process_holds_the_run_meanwhile(tmp_path: Path) -> None:
    store, plan = Store(tmp_path / "store"), plan_of(steps=7)
    folder = finished(Store(tmp_path / "elsewhere"), plan)
    ended = Ended(DONE, files={path.name: path.read_bytes() for path in folder.iterdir()})
    with store.claim(folder.name, BUSY), pytest.raises(UserError, match=f"{BUSY} What came .* is kept in .*incoming-"):
        take_in(store, folder.name, ended)
    assert (store.root / f".incoming-{folder.name}" / "result.json").read_bytes() == ended.files["result.json"]
    assert store.status(plan) == "missing"
    take_in(store, folder.name, ended)
    assert store.status(plan) == "finished"
