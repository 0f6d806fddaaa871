"""Runs on the nodes of a Ray cluster: one task per run, with the cores and GPUs it needs.

Ray decides where and when. A run whose node is lost is started again (`run_jobs`). Where the nodes share the store's
disk, a run works in the store and goes on from its last checkpoint; elsewhere it has a folder of its own, whose files
come back with the task's result. Ray's reports about its use are switched off: nothing is sent but to the cluster.
"""

from __future__ import annotations

import logging
import os
import platform
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from osp.bench.jobs import Job
from osp.bench.store import Store
from osp.bench.worker import BUSY, FAILED, LOST, STOPPED, Ended, free_name, last_line, start, stop
from osp.errors import UserError, first_line
from osp.files import append_text, make_folder, write_bytes
from osp.version import HARNESS_VERSION, install

ANSWER = 5.0
"""Seconds in which a cluster must answer."""
SAVING = 120.0
"""Seconds that a run may take to save when its bench is stopped."""
LOCK = ".lock"
PASSED_ON = ("OSP_DATA", "OSP_CACHE")
"""Of the environment, where a node has no such variable of its own."""
AUTO = "auto"
"""The address that stands for the cluster that this machine belongs to."""

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # any: what Ray would print about lost nodes, we say ourselves


class Nodes:
    """The executor of a cluster: as many runs at a time as it has room for."""

    def __init__(self, ray: Any, store: Store, proof: str, cpus: int, gpus: float) -> None:
        self._ray, self._store, self._proof, self._cpus = ray, store, proof, cpus
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(carry_out)
        self._running: dict[Any, Job] = {}

    def room(self) -> bool:
        return True  # what waits is Ray's business: a cluster that grows on demand grows by what waits

    def running(self) -> list[Job]:
        return list(self._running.values())

    def start(self, job: Job) -> None:
        recipe = job.anywhere().recipe(self._cpus)
        given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        task = self._task.options(name=job.name)
        self._running[task.remote(str(self._store.root), self._proof, job.name, recipe, HARNESS_VERSION, given)] = job

    def ended(self) -> list[tuple[Job, Ended]]:
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        jobs = [(task, self._running.pop(task)) for task in ready]
        return [(job, self._end(task, job.name)) for task, job in jobs]

    def _end(self, task: Any, name: str) -> Ended:
        problems = self._ray.exceptions
        try:
            ended: Ended = self._ray.get(task)
            take_in(self._store, name, ended)
        except problems.TaskCancelledError:
            return Ended(STOPPED)
        except problems.RayTaskError as error:  # raised in the task: no other node would do better
            return Ended(1, first_line(error.cause))
        except problems.RayError as error:
            return Ended(LOST, f"its node was lost ({type(error).__name__})")
        except UserError as error:
            return Ended(1, str(error))
        return ended

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
    address = os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address
    try:
        import ray

        if address != AUTO:
            check_answers(address)
    except ImportError:
        raise UserError(f"--ray: Ray is not installed; run `{install('ray')}`.") from None
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
    """Refuse an address where no server of Ray's kind (gRPC) answers: Ray itself would try for minutes."""
    import grpc

    place = address.removeprefix("ray://")
    host, colon, port = place.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--ray {address!r}: an address is HOST:PORT or ray://HOST:PORT, such as 10.0.0.7:6379.")
    with grpc.insecure_channel(place) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER)
        except grpc.FutureTimeoutError:
            raise UserError(f"--ray {address}: no Ray answers there.") from None


# On a node


def carry_out(
    root: str, proof: str, name: str, recipe: dict[str, Any], harness: int, environment: Mapping[str, str]
) -> Ended:
    """Carry out the run `name` of the store at `root` on the machine that this is called on.

    `proof` names a file that whoever asks has put into the store: where it is not there, this is another disk.
    `environment` is set where the node has nothing of that name.
    """
    for key, value in environment.items():
        os.environ.setdefault(key, value)
    if harness != HARNESS_VERSION:
        reason = f"the node {platform.node()} has version {HARNESS_VERSION} of the harness, the bench has {harness}"
        return Ended(FAILED, f"{reason}: install the same osp on both")
    if proof and (Path(root) / proof).is_file():
        store = Store(Path(root))
        code = _work(store, name, recipe)
        return Ended(code, last_line(store.log(name)))
    with tempfile.TemporaryDirectory(prefix="osp-run-") as scratch:
        store = Store(Path(scratch))
        store.create()
        code = _work(store, name, recipe)
        log = store.log(name).read_text(encoding="utf-8", errors="replace")
        return Ended(code, last_line(store.log(name)), _files(store.root / name), log)


def _work(store: Store, name: str, recipe: dict[str, Any]) -> int:
    """How the run's process ended; where this one is interrupted, that one saves and ends first."""
    process = start(store, name, recipe)
    try:
        process.join()
    finally:
        stop(process)
        process.join(SAVING)
        stop(process, at_once=True)
        process.join()
    return process.exitcode or 0


def _files(folder: Path) -> dict[str, bytes]:
    """Everything in a run folder but its lock."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@contextmanager
def proof_in(store: Store) -> Iterator[str]:
    """A file in the store by which a node can tell that it sees this very folder."""
    store.create()
    path = store.claims / f".shared-{uuid.uuid4().hex}"
    path.touch()
    try:
        yield path.relative_to(store.root).as_posix()
    finally:
        path.unlink(missing_ok=True)


def take_in(store: Store, name: str, ended: Ended) -> None:
    """Put the files of a run that was carried out on another disk into the store, whole or not at all.

    Where another process works on the run meanwhile, they are kept beside it, and it is said where.
    """
    if ended.log:
        append_text(store.log(name), ended.log)
    if not ended.files:
        return
    target, incoming = store.root / name, free_name(store.root / f".incoming-{name}")
    _write(incoming, ended.files)
    try:
        with store.claim(name, BUSY):
            if target.exists():  # of an earlier attempt
                os.replace(target, free_name(store.root / f".earlier-{name}"))
            os.replace(incoming, target)
    except UserError as error:
        raise UserError(f"{error} What came from the node is kept in {incoming}.") from None


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise UserError(f"A node sent the file {name!r}, which would land outside its run's folder.")
        make_folder((folder / path).parent)
        write_bytes(folder / path, content)
