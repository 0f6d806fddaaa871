"""One run of a bench on another machine: in the store itself where that is on a shared disk.

Elsewhere the run has a folder of its own, whose files go back to the store when it has ended.
"""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from subprocess import Popen, TimeoutExpired
from typing import Any

from osp.bench.local import last_line, start_worker
from osp.bench.store import Store
from osp.bench.worker import BUSY, FAILED, free_name
from osp.errors import UserError
from osp.files import append_text, make_folder, write_bytes
from osp.version import HARNESS_VERSION

SAVING = 120.0
"""Seconds that a run may take to save when its bench is stopped."""
LOCK = ".lock"


@dataclass(frozen=True)
class Returned:
    """What a node gives back."""

    code: int
    """How the run ended, as in `osp.bench.worker`."""
    said: str = ""
    """The last line of its log."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The run folder, by paths in it; nothing where it is in the store already."""
    log: str = ""


def carry_out(
    root: str, proof: str, name: str, recipe: dict[str, Any], harness: int, environment: Mapping[str, str]
) -> Returned:
    """Carry out the run `name` of the store at `root` on the machine that this is called on.

    `proof` names a file that whoever asks has put into the store: where it is not there, this is another disk.
    `environment` is set where the node has nothing of that name.
    """
    for key, value in environment.items():
        os.environ.setdefault(key, value)
    if harness != HARNESS_VERSION:
        reason = f"the node {os.uname().nodename} has version {HARNESS_VERSION} of the harness, the bench has {harness}"
        return Returned(FAILED, f"{reason}: install the same osp on both")
    if proof and (Path(root) / proof).is_file():
        store = Store(Path(root))
        code = _work(store, name, recipe)
        return Returned(code, last_line(store.log(name)))
    with tempfile.TemporaryDirectory(prefix="osp-run-") as scratch:
        store = Store(Path(scratch))
        store.create()
        code = _work(store, name, recipe)
        log = store.log(name).read_text(encoding="utf-8", errors="replace")
        return Returned(code, last_line(store.log(name)), _files(store.root / name), log)


def _work(store: Store, name: str, recipe: dict[str, Any]) -> int:
    """How the run's process ended; where this one is interrupted, that one saves and ends first."""
    with store.open_log(name) as log:
        process = start_worker(store.root, name, recipe, log.fileno())
    try:
        return process.wait()
    finally:
        _end(process)


def _end(process: Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SAVING)
        except TimeoutExpired:
            process.kill()
            process.wait()


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


def take_in(store: Store, name: str, returned: Returned) -> None:
    """Put the files of a run that was carried out on another disk into the store, whole or not at all."""
    if returned.log:
        append_text(store.log(name), returned.log)
    if not returned.files:
        return
    target, incoming = store.root / name, free_name(store.root / f".incoming-{name}")
    with store.claim(name, BUSY):
        _write(incoming, returned.files)
        if target.exists():  # of an earlier attempt
            os.replace(target, free_name(store.root / f".earlier-{name}"))
        os.replace(incoming, target)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise UserError(f"A node sent the file {name!r}, which would land outside its run's folder.")
        make_folder((folder / path).parent)
        write_bytes(folder / path, content)
