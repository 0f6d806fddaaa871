"""What only some systems have is asked for before it is used: every module is imported where such names are absent.

This is no run on Windows or macOS: it shows that nothing there fails before it begins.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty")
AWAY = f"""
import os, signal, sys
for module in {MODULES}:
    sys.modules[module] = None
import multiprocessing, platform, ssl, tempfile, threading  # the library itself guards these, by the system's name
import torch, lightning_fabric, matplotlib.figure, pydantic, rich.console, sklearn.metrics, typer
import filelock, jinja2, platformdirs, safetensors.torch, starlette.applications, uvicorn
class Lock:  # Windows has one of its own; what filelock finds here takes files that others left for locks
    def __init__(self, path): self.is_locked = False
    def acquire(self, **how): self.is_locked = True
    def release(self): self.is_locked = False
filelock.FileLock = Lock
for name in ("fork", "forkpty", "getuid", "geteuid", "getppid", "killpg", "nice", "pread", "sched_getaffinity",
             "setsid", "statvfs", "sync", "uname", "wait3", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK",
             "O_PATH"):
    if hasattr(os, name):
        delattr(os, name)
os.supports_dir_fd = set()
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "pthread_sigmask", "alarm"):
    if hasattr(signal, name):
        delattr(signal, name)
"""


def without(program: str, folder: Path) -> str:
    """What a program prints in a Python that lacks what POSIX has."""
    found = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", AWAY + program], cwd=folder, env=found, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules() -> list[str]:
    """Every module of the package but the one that runs the command."""
    names = (path.relative_to(SOURCE).with_suffix("").parts for path in sorted(SOURCE.glob("osp/**/*.py")))
    found = [".".join(each[:-1] if each[-1] == "__init__" else each) for each in names]
    return [each for each in found if each != "osp.__main__"]


def test_no_module_needs_what_other_systems_lack_as_soon_as_it_is_imported() -> None:
    for path in SOURCE.glob("osp/**/*.py"):
        for each in ast.parse(path.read_text("utf-8")).body:
            named = [each.module] if isinstance(each, ast.ImportFrom) else []
            named += [name.name for name in each.names] if isinstance(each, ast.Import) else []
            assert not set(named) & set(MODULES), path


@pytest.mark.slow
def test_every_module_is_imported_without_what_other_systems_lack(tmp_path: Path) -> None:
    program = f"import importlib\nfor name in {modules()!r}:\n    importlib.import_module(name)\nprint('all')"
    assert without(program, tmp_path).strip() == "all"


@pytest.mark.slow
def test_training_and_photos_work_without_what_other_systems_lack(tmp_path: Path) -> None:
    """`os.name` stays, so that Python's own library works: what is tried are our guards."""
    program = """
import numpy as np, osp
from pathlib import Path
from PIL import Image
run = osp.train(osp.Recipe(data="digits", method="supervised", scale="demo", steps=2), "run", progress=False)
for number, middle in enumerate([(200, 60, 40), (40, 80, 200)]):
    for photo in range(6):
        folder = Path("photos", str(number)) if photo < 3 else Path("unsorted")
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng([number, photo]).normal(size=(48, 48, 3)) * 20
        pixels = np.clip(np.array(middle) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}{photo}.png")
from osp.cli import app
from typer.testing import CliRunner
for words in (["fit", "photos", "unsorted", "--out", "fit"],
              ["sort", "fit", "unsorted", "--to", "by", "--as", "copies"],
              ["verify", "fit"], ["verify", "run"]):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)
print(len([path for path in Path("by").rglob("*.png")]))
"""
    assert without(program, tmp_path).split()[-1] == "6"
