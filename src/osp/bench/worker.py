"""One run of a bench in a process of its own.

It holds the run's claim while it works, begins or continues the run, and notes how it ended in `run.json`. When the
process that started it is gone, it saves and ends too, so that a killed bench leaves nothing running.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import sys
import threading
import traceback
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from osp.bench.claims import stop_this_process
from osp.bench.store import Store
from osp.errors import UserError
from osp.machine import processor, safe_path
from osp.recipe import Plan, Recipe, make_plan
from osp.recipe.code import as_fields, files_in
from osp.recipe.plan import FREE
from osp.runs.folder import RunFolder

DONE, FAILED, ELSEWHERE, LOST, FOUND, STOPPED = 0, 2, 75, 76, 77, 130
"""How a run ended: finished; failed; another process is at it; its node is gone; another process had finished it before
this one could claim it; stopped, and saved. Exit codes but for LOST, which no process is left to give."""

BUSY = "Another process works on this run."
PRELOADED = ["osp.engine.train", "osp.bench.worker", "osp.report.picture", "sklearn.metrics"]
"""What every run needs, and what takes long to import."""


@dataclass(frozen=True)
class Ended:
    """How the process of a run ended and what it said last; from a node on another disk also its files."""

    code: int
    said: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """The run folder, by paths in it; nothing where it is in the store already."""
    log: str = ""


# From outside


def start(store: Store, name: str, recipe: dict[str, Any]) -> BaseProcess:
    """A process for one run; what it prints goes to the run's log.

    Where the system can, it is forked from a process that has loaded torch once, which saves seconds per run.
    """
    with store.open_log(name) as log:  # refused here where it cannot be one
        log.write(f"{STARTED}\n".encode())
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(PRELOADED)
    process: BaseProcess = context.Process(target=_begin, args=(store.root, name, recipe))
    with safe_path():  # the fork server is started with the first of them
        process.start()
    return process


def stop(process: BaseProcess, at_once: bool = False) -> None:
    """Ask a run to save and end, or end it. Windows can only end it: it goes on from its last save."""
    (process.kill if at_once else process.terminate)()


AUTOGROUP = Path("/proc/self/autogroup")
STARTED = "osp: the run is started"
"""First line of each attempt in a log, which holds all of them."""


def last_line(path: Path) -> str:
    """What the last process printed last, in a log that is no link."""
    if path.is_symlink():
        return ""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("osp: ") if lines and lines[-1] != STARTED else ""


# Inside


def _begin(root: Path, name: str, fields: dict[str, Any]) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # a session of its own: Ctrl-C reaches it once, from the bench
        keep_nice()
    threading.Thread(target=_follow, daemon=True).start()
    try:
        code = logged(root, name, fields)
    except UserError as error:
        print(f"osp: {error}", file=sys.stderr)
        code = FAILED
    sys.exit(code)


def keep_nice() -> None:
    """Linux shares processor time between sessions first, where a new one has no niceness: give this one its own's."""
    with contextlib.suppress(OSError):
        if nice := os.nice(0):
            AUTOGROUP.write_text(f"{nice}\n")


def _follow() -> None:
    """Ask this process to stop when the one that started it is gone."""
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    stop_this_process()


def logged(root: Path, name: str, fields: dict[str, Any]) -> int:
    """`work`, what it prints going to its log."""
    sys.stdout.flush()
    with Store(root).open_log(name) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return work(root, name, fields)


def work(root: Path, name: str, fields: dict[str, Any]) -> int:
    """Begin or continue the run `name` of a store."""
    store = Store(root)
    try:
        with store.claim(name, BUSY):
            return _train(store, name, fields)
    except UserError as error:
        if str(error) != BUSY:
            raise
        return ELSEWHERE


def _train(store: Store, name: str, fields: dict[str, Any]) -> int:
    from osp.engine.devices import keep_freed_memory
    from osp.engine.signals import Interrupted
    from osp.engine.train import train

    keep_freed_memory()
    recipe, folder, failure = Recipe(**fields), RunFolder(store.root / name), ""
    plan = make_plan(recipe)
    if store.has_finished(name, plan):
        return FOUND
    try:
        set_damage_aside(folder)
        (folder.path / "run.json").unlink(missing_ok=True)  # of an earlier failure
        if folder.begun():  # by the plan that is there: its words may differ, its identity does not
            free = {key: value for key, value in recipe.asked().items() if key in (*FREE, "method")}
            code = as_fields(files_in(recipe.asked()))
            train(Recipe(**{**free, **code}), folder.path, resume=True)
        else:
            train(recipe, folder.path)
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    except UserError as error:
        failure = str(error)
    except Exception as error:  # of whatever kind: the other runs go on, and this one says what happened
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    if failure:
        print(f"osp: {failure}", file=sys.stderr)
    with contextlib.suppress(UserError):  # a full disk: the exit code says it
        store.note(folder, plan, "failed" if failure else "finished", machine(), failure)
    return FAILED if failure else DONE


def set_damage_aside(folder: RunFolder) -> None:
    """Keep a damaged result or run under another name, so that what can be is made again; nothing is deleted."""
    if folder.begun():
        try:
            Plan.read(folder.plan)
        except UserError as error:
            print(f"osp: {error}", file=sys.stderr)
            os.replace(folder.path, free_name(folder.path.with_name(f".damaged-{folder.path.name}")))
            return
    try:
        folder.read_result()
    except UserError as error:
        print(f"osp: {error}", file=sys.stderr)
        os.replace(folder.result, free_name(folder.path / "result.damaged"))


def free_name(path: Path) -> Path:
    """This name, or with a number behind it."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def machine() -> dict[str, Any]:
    """What this machine is, without its name."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"processor": processor(), "cores": os.cpu_count(), "gpu": gpu, "system": platform.system()}
