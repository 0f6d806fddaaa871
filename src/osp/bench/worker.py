"""One run of a bench in a process of its own: `python -m osp.bench.worker STORE NAME`, the recipe on standard input.

It holds the run's claim while it works, begins or continues the run, and notes how it ended in `run.json`. When the
bench that started it is gone, it saves and ends too, so that a killed bench leaves nothing running.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osp.errors import UserError
from osp.machine import processor

DONE, FAILED, ELSEWHERE, LOST, FOUND, STOPPED = 0, 2, 75, 76, 77, 130
"""How a run ended: finished; failed; another process is at it; its node is gone; another process had finished it before
this one could claim it; stopped, and saved. Exit codes but for LOST, which no process is left to say."""

BUSY = "Another process works on this run."


def main() -> int:
    store, name, parent = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    fields = json.loads(sys.stdin.read())
    threading.Thread(target=follow, args=(parent,), daemon=True).start()
    return work(store, name, fields)


def forked(root: Path, name: str, fields: dict[str, Any]) -> None:
    """The same in a process that was forked from one which has everything loaded."""
    os.setsid()  # a session of its own: Ctrl-C reaches it once, from the bench
    sys.stdout.flush()
    threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
    sys.exit(told(lambda: logged(root, name, fields)))


def logged(root: Path, name: str, fields: dict[str, Any]) -> int:
    """`work`, what it prints going to its log."""
    from osp.bench.store import Store

    with Store(root).open_log(name) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    return work(root, name, fields)


def told(job: Callable[[], int]) -> int:
    """The exit code of a job; a mistake of the user's is said in a sentence."""
    try:
        return job()
    except UserError as error:
        print(f"osp: {error}", file=sys.stderr)
        return FAILED


def follow(parent: int) -> None:
    """Ask this process to stop when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def work(root: Path, name: str, fields: dict[str, Any]) -> int:
    """Begin or continue the run `name` of a store."""
    from osp.bench.store import Store

    store = Store(root)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(store.claim(name, BUSY))
        except UserError as error:
            if str(error) == BUSY:
                return ELSEWHERE
            raise
        return train_claimed(store, name, fields)


def train_claimed(store: Any, name: str, fields: dict[str, Any]) -> int:
    from osp.engine.devices import keep_freed_memory
    from osp.engine.signals import Interrupted
    from osp.engine.train import train
    from osp.recipe import Recipe, make_plan
    from osp.recipe.code import as_fields, files_in
    from osp.recipe.plan import FREE
    from osp.runs.folder import RunFolder

    keep_freed_memory()
    recipe = Recipe(**fields)
    plan = make_plan(recipe)
    folder = RunFolder(store.root / name)
    if store.has_finished(name, plan):
        return FOUND
    failure = ""
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
        import traceback

        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    if failure:
        print(f"osp: {failure}", file=sys.stderr)
    with contextlib.suppress(UserError):  # a full disk: the exit code says it
        store.note(folder, plan, "failed" if failure else "finished", machine(), failure)
    return FAILED if failure else DONE


def set_damage_aside(folder: Any) -> None:
    """Keep a damaged result or run under another name, so that what can be is made anew; nothing is deleted."""
    from osp.bench.store import check_result
    from osp.recipe import Plan

    if folder.begun():
        try:
            Plan.read(folder.plan)
        except UserError as error:
            print(f"osp: {error}", file=sys.stderr)
            os.replace(folder.path, free_name(folder.path.with_name(f".damaged-{folder.path.name}")))
            return
    try:
        check_result(folder.read_result() or {}, folder.result)
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
    import platform

    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"processor": processor(), "cores": os.cpu_count(), "gpu": gpu, "system": platform.system()}


if __name__ == "__main__":
    sys.exit(told(main))
