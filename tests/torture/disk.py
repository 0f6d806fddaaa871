"""Disks, files and clocks that fail: full, read-only, gone, shared by two processes, set wrong.

Each case gives its fault, or nothing. A full disk is a tmpfs in a mount namespace of a fork, which sees it alone: it is
made small while the work goes on, large again, and the work is taken up in place.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from osp import UserError
from osp.engine.progress import Display
from osp.engine.train import train
from osp.recipe import Recipe
from osp.runs.folder import RunFolder
from torture.kill import Work, attempt, reference, works
from torture.works import _images, _same_run, recipe

Case = tuple[str, Callable[[], str]]

ROOM = (0, 4, 16, 48, 120, 250, 500, 900)
"""Kilobytes that are free when the work begins."""

NEW_USERS, NEW_MOUNTS = 0x10000000, 0x20000
READ_ONLY, REMOUNT, PRIVATE = 1, 32, (1 << 14) | (1 << 18)
FAKE_CLOCK = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)


def cases(base: Path) -> Iterator[Case]:
    base.mkdir(parents=True)
    if not may_mount():
        print("no mount namespaces here: full and read-only disks are left out")
    else:
        for work in works():
            for kilobytes in ROOM[3::3] if work.costly else ROOM:
                name = f"full, {work.name}, {kilobytes} kB"
                yield name, lambda w=work, k=kilobytes: full_disk(w, base / "full", k)  # type: ignore[misc]
        yield "read-only, new run", lambda: read_only(base / "read-only-new", begun=False)
        yield "read-only, run to resume", lambda: read_only(base / "read-only-begun", begun=True)
    for number in range(10):
        yield f"two processes at once, {number}", lambda n=number: two_processes(base / f"two-{n}")  # type: ignore[misc]
    for number in range(5):
        yield (
            f"a late second process, {number}",
            lambda n=number: two_processes(base / f"late-{n}", 0.2 * (n + 1)),  # type: ignore[misc]
        )
    yield "images gone between two starts", lambda: vanished(base / "vanished")
    for step in (1, 3, 5):
        yield f"images gone at step {step}", lambda n=step: gone_on_the_way(base / f"gone-{n}", n)  # type: ignore[misc]
    if fake_clock() is None:
        print("libfaketime is not there (Debian: apt-get install faketime): jumps of the clock are left out")
    else:
        for jump in ("-3d", "+10y", "-20y", "+1h"):
            yield f"clock jumps by {jump}", lambda j=jump: clock(base / f"clock{j}", j)  # type: ignore[misc]


# A disk of our own


def may_mount() -> bool:
    """Whether a process may have mounts of its own here."""
    found = shutil.which("unshare")
    return found is not None and subprocess.run([found, "-rm", "true"], capture_output=True).returncode == 0


def _mount(place: Path, kilobytes: int, flags: int = 0) -> None:
    """A tmpfs of this size, or the one that is there at another size."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={kilobytes}k,mode=755".encode()
    if libc.mount(b"none", str(place).encode(), b"tmpfs", flags, options) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {place}")


def _own_mounts() -> None:
    """This process, which must have one thread, sees mounts of its own from now on."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(NEW_USERS | NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path(f"/proc/self/{name}").write_text(content, "ascii")
    libc.mount(b"none", b"/", None, PRIVATE, None)


def full_disk(work: Work, base: Path, kilobytes: int) -> str:
    """The work on a disk with little room left; when there is room again it is taken up, and nothing is lost."""
    good = reference(work, base)
    place = base / f"{good.name}-{kilobytes}"

    def go(folder: Path) -> None:
        _own_mounts()
        _mount(folder, 200_000)
        here = folder / good.name
        here.mkdir()
        work.prepare(here)
        used = shutil.disk_usage(folder).used // 1024
        _mount(folder, max(4, used + kilobytes), REMOUNT)
        stopped = False
        try:
            work.act(here)
        except UserError:
            stopped = True
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            stopped = True  # the command makes a sentence of it
        except AssertionError as error:
            if not str(error).startswith("exit code"):  # of a command that has said why
                raise
            stopped = True
        _mount(folder, 200_000, REMOUNT)
        if stopped:
            work.recover(here)
        work.check(here, good)

    return _told(go, place)


def read_only(base: Path, begun: bool) -> str:
    """A folder that cannot be written is refused with a sentence, and a run in it is as it was."""
    base.mkdir(parents=True)

    def go(folder: Path) -> None:
        _own_mounts()
        _mount(folder, 50_000)
        if begun:
            with suppress(StopIteration):
                train(recipe("osp"), folder / "run", display=At(5, _break_off))
        before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
        _mount(folder, 50_000, REMOUNT | READ_ONLY)
        try:
            train(recipe("osp"), folder / "run", resume=begun)
        except UserError as error:
            said = str(error)
        else:
            raise AssertionError("a run on a read-only disk")
        assert str(folder) in said, f"the sentence names no folder: {said}"
        assert before == sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")), "files changed"

    return _told(go, base / "disk")


def _told(function: Callable[[Path], None], folder: Path) -> str:
    """What a function in a fork complains of."""
    folder.mkdir(parents=True)
    code = attempt(function, folder)
    note = folder.parent / f"{folder.name}.error"
    if code == 0:
        return ""
    return note.read_text("utf-8")[:500] if note.exists() else f"ended with {code}"


# Two at once


def two_processes(base: Path, later: float = 0.0) -> str:
    """Of two starts in one folder one does the work, and the other is refused."""
    good, shared = _made(base / "good"), _made(base / "shared")
    assert attempt(lambda folder: _quietly(folder / "run"), good) == 0
    children = []
    for delay in (0.0, later):
        time.sleep(delay)
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
    return _compared(shared, good) if codes == [0, 2] else f"the two ended with {codes}"


# Images that are no longer there


def vanished(base: Path) -> str:
    """A run whose images are gone is refused with a sentence, and goes on when they are back."""
    base.mkdir(parents=True)
    _images(base)
    asked = _photos_recipe(base, 2)
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


def gone_on_the_way(base: Path, step: int) -> str:
    """Images that vanish while a run goes on: it finishes on what it has read, or stops with a sentence and goes on
    when they are back; either way with the bits of a run in peace."""
    good, here = _made(base / "good"), _made(base / "here")
    _images(good)
    shutil.copytree(good / "photos", here / "photos")

    def peace(folder: Path) -> None:
        train(_photos_recipe(folder, 6), folder / "run")

    def go(folder: Path) -> None:
        away = At(step, lambda: os.rename(folder / "photos", folder / "elsewhere"))
        try:
            train(_photos_recipe(folder, 6), folder / "run", display=away)
        except UserError:
            os.rename(folder / "elsewhere", folder / "photos")
            train(Recipe(), folder / "run", resume=True)

    for function, folder in ((peace, good), (go, here)):
        if attempt(function, folder) != 0:
            return (folder.parent / f"{folder.name}.error").read_text("utf-8")[:500]
    return _compared(here, good)


def _photos_recipe(base: Path, steps: int) -> Recipe:
    asked = Recipe(data="folder", data_dir=str(base / "photos"), method="supervised", scale="demo", steps=steps)
    return asked.changed(image_size=16, labels_per_class=2, threads=1, save_every=2, log_every=1, options={"batch": 2})


class At(Display):
    """A display that does something once, after a step."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self.when, self.do = step, do

    def step(self, done: int, stage: str) -> None:
        if done == self.when:
            self.do()


def _break_off() -> None:
    raise StopIteration


# Clocks


def fake_clock() -> str | None:
    """The library of libfaketime."""
    return next((path for path in FAKE_CLOCK if os.path.exists(path)), None)


def clock(base: Path, jump: str) -> str:
    """A run while the clock is set by days and years, and a bench's claim: the same bits, and no time below zero."""
    good, here = _made(base / "good"), _made(base / "here")
    assert attempt(lambda folder: _quietly(folder / "run"), good) == 0
    setting = here / "clock"
    setting.write_text("+0", "ascii")
    program = (
        "import sys, time; from pathlib import Path; from torture.disk import At; from torture.works import recipe\n"
        "from torture.works import _keep, _kept; from osp.engine.train import train\n"
        "here, jump = Path(sys.argv[1]), sys.argv[2]; before = time.time()\n"
        "def set_clock(): (here / 'clock').write_text(jump, 'ascii')\n"
        "train(recipe('osp').changed(save_seconds=0.05), here / 'run', display=At(3, set_clock))\n"
        "assert abs(time.time() - before) > 3000, 'the clock did not jump'\n"
        "_keep(here); _kept(here, here)\n"
        "(here / 'clock').write_text('+0', 'ascii'); _keep(here); _kept(here, here)\n"
    )
    environment = {
        **{**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"},
        **{"LD_PRELOAD": fake_clock() or "", "FAKETIME_TIMESTAMP_FILE": str(setting), "FAKETIME_NO_CACHE": "1"},
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    command = [sys.executable, "-c", program, str(here), jump]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    if done.returncode != 0:
        return done.stderr[-500:]
    seconds = json.loads(RunFolder(here / "run").result.read_text("utf-8"))["seconds"]
    if not 0 <= seconds < 300:
        return f"the run says that it took {seconds} seconds"
    return _compared(here, good)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _quietly(run: Path) -> None:
    train(recipe("osp"), run)


def _compared(folder: Path, good: Path) -> str:
    try:
        _same_run(folder, good)
    except (AssertionError, UserError) as error:
        return str(error)
    return ""
