"""Disks and files that fail: full, read-only, gone, shared by two processes. Each case gives its fault, or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from osp import UserError
from osp.engine.train import train
from osp.recipe import Recipe
from osp.runs.folder import RunFolder
from torture.kill import attempt
from torture.works import _images, _same_run, recipe

Case = tuple[str, Callable[[], str]]


def cases(base: Path) -> Iterator[Case]:
    base.mkdir(parents=True)
    for kilobytes in (200, 500, 900):
        yield f"full after {kilobytes} kB", lambda k=kilobytes: full_disk(base / f"full-{k}", k)  # type: ignore[misc]
    yield "two processes on one folder", lambda: two_processes(base / "two")
    yield "data folder gone", lambda: vanished(base / "vanished")


def full_disk(base: Path, kilobytes: int) -> str:
    """A run on a small tmpfs of its own that fills up; copied to a larger disk, it goes on to the same bits."""
    if shutil.which("unshare") is None:
        return ""
    base.mkdir(parents=True)
    attempt(lambda folder: _quietly(folder / "run"), _made(base / "good"))
    program = (
        "import sys; from pathlib import Path; from torture.works import recipe; from osp.engine.train import train\n"
        "from osp import UserError\n"
        "try: train(recipe('osp'), Path(sys.argv[1]) / 'run')\n"
        "except UserError as error: print(error, file=sys.stderr); sys.exit(2)\n"
    )
    small, kept = base / "small", _made(base / "kept")
    small.mkdir()
    mount = f'mount -t tmpfs -o size={kilobytes}k none "$1"'
    script = mount + ' && "$2" -c "$3" "$1"; code=$?; cp -r "$1"/. "$4"; exit $code'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(small), sys.executable, program, str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if "Traceback" in done.stderr or done.returncode not in (0, 2):
        return done.stderr[-500:]
    if attempt(lambda folder: _go_on(folder / "run"), kept) != 0:
        return "could not be taken up: " + (kept.parent / f"{kept.name}.error").read_text("utf-8")[:300]
    return _compared(kept, base / "good")


def two_processes(base: Path) -> str:
    """Of two starts in one folder one does the work, and the other is refused."""
    attempt(lambda folder: _quietly(folder / "run"), _made(base / "good"))
    shared = _made(base / "shared")
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = 3
            try:
                train(recipe("osp"), shared / "run")
                code = 0
            except UserError:
                code = 2
            finally:
                os._exit(code)
        children.append(child)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    return _compared(shared, base / "good") if codes == [0, 2] else f"the two ended with {codes}"


def vanished(base: Path) -> str:
    """A run whose images are gone is refused with a sentence, and goes on when they are back."""
    base.mkdir(parents=True)
    _images(base)
    asked = Recipe(data="folder", data_dir=str(base / "photos"), method="supervised", scale="demo", steps=2, threads=1)
    asked = asked.changed(image_size=16, labels_per_class=2, options={"batch": 2})
    try:
        train(asked, base / "run")
        RunFolder(base / "run").result.unlink()
        os.rename(base / "photos", base / "elsewhere")
        try:
            train(Recipe(), base / "run", resume=True)
            return "went on without images"
        except UserError:
            os.rename(base / "elsewhere", base / "photos")
        train(Recipe(), base / "run", resume=True)
    except UserError as error:
        return str(error)
    return ""


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _quietly(run: Path) -> None:
    train(recipe("osp"), run)


def _go_on(run: Path) -> None:
    train(recipe("osp"), run, resume=RunFolder(run).begun())


def _compared(folder: Path, good: Path) -> str:
    try:
        _same_run(folder, good)
    except (AssertionError, UserError) as error:
        return str(error)
    return ""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
