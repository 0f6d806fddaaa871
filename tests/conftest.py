"""Real image sets for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from osp import Recipe

os.environ.setdefault("OMP_NUM_THREADS", "1")  # batches are tiny here, and tests run side by side
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if not os.environ.get("CI"):  # there hypothesis has a profile of its own, which does not mind a slow machine either
    settings.load_profile("busy")

collect_ignore = ["torture/hooks"]  # read by schemathesis, in an environment of its own

PACKED = Path(__file__).resolve().parents[2] / "shared" / "data"
FOLDERS = {
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "tinyimagenet": "tiny-imagenet-200",
    "scenes": "LSUN_resize",
    "photos": "photos",
}


def _shared(name: str) -> Path:
    """A folder that outlives the test run, one for each user."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"osp-test-{name}-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`real_data("mnist", ...)`: a folder with these real sets as published; skips where they are not to be had.

    Taken from OSP_TEST_DATA, else unpacked from ../shared/data, once for all runs. Their decoded images are kept too.
    With CI=true a missing set is a failure.
    """

    def get(*names: str) -> Path:
        monkeypatch.setenv("OSP_CACHE", str(_shared("cache")))
        given = os.environ.get("OSP_TEST_DATA")
        root = Path(given) if given else _shared("data")
        if not given and (PACKED / "unpack").is_file():
            _unpack(root, names)
        missing = [name for name in names if not (root / FOLDERS[name]).is_dir()]
        if missing:
            message = f"needs the real data {', '.join(missing)}: not in {root}, nor packed in ../shared/data"
            if os.environ.get("CI", "").lower() in ("1", "true"):
                pytest.fail(message)
            pytest.skip(message)
        return root

    return get


def _unpack(root: Path, names: tuple[str, ...]) -> None:
    """Unpack what is not there yet; a mark says that a set is whole, because several test processes may ask at once."""
    from osp.files import locked

    with locked(root.parent / f"{root.name}.lock"):
        wanted = [name for name in names if not (root / f".{name}-is-whole").exists()]
        if wanted:
            command = [sys.executable, str(PACKED / "unpack"), str(root), *wanted]
            subprocess.run(command, check=True, capture_output=True)
        for name in wanted:
            (root / f".{name}-is-whole").touch()


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Recipe, Path]]:
    """`short_run(method)`, in tests/engine: its recipe and the folder of a run of 16 steps that nobody stopped.

    Made once, also where tests run side by side, so nobody may change what is in the folder. "everything" is the method
    that uses every contract.
    """
    from small_runs import STEPS, everything, small

    from helpers.runs import run
    from osp.files import locked
    from osp.runs.folder import RunFolder

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "short-runs"
    shared.mkdir(exist_ok=True)

    def get(name: str) -> tuple[Recipe, Path]:
        with locked(shared / f"{name}.lock"):
            path, method = shared / name, name
            if name == "everything":  # written once, because others may just be reading it
                method = str(shared / "everything.py") if path.exists() else everything(shared)
            recipe = small(method, steps=STEPS)
            if not path.exists():
                run(recipe, path)
            assert RunFolder(path).read_result() is not None, f"the run of {name} failed in another test"
        return recipe, path

    return get
