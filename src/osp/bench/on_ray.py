"""Runs on the nodes of a Ray cluster: one task a run, with the cores and GPUs it needs.

Ray decides where and when; a run whose node is lost is started again (`run_jobs`), and goes on from its last checkpoint
where the store is on a disk that the nodes share. Elsewhere its files come back with the task's result. Nothing is sent
to anybody but the cluster: Ray's reports about its use are switched off.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from osp.bench.jobs import Job
from osp.bench.node import Returned, carry_out, proof_in, take_in
from osp.bench.run import Ended
from osp.bench.store import Store
from osp.bench.worker import LOST, STOPPED
from osp.errors import UserError, first_line
from osp.version import HARNESS_VERSION

ANSWER = 5.0
"""Seconds in which a cluster must answer."""
PASSED_ON = ("OSP_DATA", "OSP_CACHE")
"""Of the environment, where a node has no such variable of its own."""
AUTO = "auto"
"""The address that stands for the cluster that this machine belongs to."""

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # any: what Ray would print about lost nodes, we say ourselves


class Nodes:
    """Where `run_jobs` lets runs be carried out: on the nodes of the cluster, as many at a time as it has room for."""

    def __init__(self, ray: Any, store: Store, proof: str, cpus: int, gpus: float) -> None:
        self._ray, self._store, self._proof, self._cpus = ray, store, proof, cpus
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(carry_out)
        self._running: dict[Any, Job] = {}

    def room(self) -> bool:
        return True  # what waits is Ray's business: a cluster that grows on demand grows by what waits

    def running(self) -> list[Job]:
        return list(self._running.values())

    def start(self, job: Job) -> None:
        recipe = job.anywhere().with_threads(self._cpus).recipe.asked()
        given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        task = self._task.options(name=job.name)
        self._running[task.remote(str(self._store.root), self._proof, job.name, recipe, HARNESS_VERSION, given)] = job

    def ended(self) -> list[Ended]:
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [self._end(task, self._running.pop(task)) for task in ready]

    def _end(self, task: Any, job: Job) -> Ended:
        problems = self._ray.exceptions
        try:
            returned: Returned = self._ray.get(task)
            take_in(self._store, job.name, returned)
        except problems.TaskCancelledError:
            return Ended(job, STOPPED)
        except problems.RayTaskError as error:  # raised in the task: no other node would do better
            return Ended(job, 1, first_line(error.cause))
        except problems.RayError as error:
            return Ended(job, LOST, f"its node was lost ({type(error).__name__})")
        except UserError as error:
            return Ended(job, 1, str(error))
        return Ended(job, returned.code, returned.said)

    def stop(self, at_once: bool) -> None:
        for task in list(self._running):
            self._ray.cancel(task, force=at_once)


@contextmanager
def ray_nodes(store: Store, address: str, cpus: int, gpus: float | None) -> Iterator[tuple[Nodes, str, int]]:
    """The nodes of the cluster at an address, a sentence about them, and how many runs they have room for."""
    with connected(address) as ray, proof_in(store) as proof:
        has = ray.cluster_resources()
        alive = sum(bool(node["Alive"]) for node in ray.nodes())
        if gpus is None:
            gpus = 1.0 if has.get("GPU") else 0.0
        rooms = [has.get("CPU", 0) // cpus, *([has.get("GPU", 0) // gpus] if gpus else [])]
        about = f"Ray: {alive} nodes, {has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs"
        if not min(rooms):
            needs = f"{cpus} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            about += f"; no run of {needs} fits into them all together, and runs wait for more nodes"
        yield Nodes(ray, store, proof, cpus, gpus), about, max(1, int(min(rooms)))


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; a sentence where none answers there."""
    try:
        import ray
    except ImportError:
        raise UserError("--ray: Ray is not installed; run `pip install 'osp[ray]'`.") from None
    address = os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address
    if address != AUTO:
        check_answers(address)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError:
        if address != AUTO:
            raise UserError(f"--ray {address}: no Ray answers there.") from None
        raise UserError(
            "--ray: this machine belongs to no Ray cluster. Start one with `ray start --head`, or name one: "
            "--ray HOST:6379."
        ) from None
    except Exception as error:  # another version of Ray or Python, a password, ...
        raise UserError(f"--ray {address}: {first_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_answers(address: str) -> None:
    """Refuse an address where no server of Ray's kind answers: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--ray {address!r}: an address is HOST:PORT or ray://HOST:PORT, such as 10.0.0.7:6379.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER) as line:
            line.settimeout(ANSWER)
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            answer = line.recv(9)
    except OSError as error:
        reason = "nothing answered in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(f"--ray {address}: no Ray answers there ({reason}).") from None
    if len(answer) < 4 or answer[3] != 4:  # a server of this protocol begins with its settings
        raise UserError(f"--ray {address}: something answers there, but it is no Ray.")
