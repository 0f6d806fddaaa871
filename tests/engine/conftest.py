"""Whole runs that several tests look at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import STEPS, everything, small

from helpers.runs import run
from osp import Recipe
from osp.files import locked
from osp.runs.folder import RunFolder


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Recipe, Path]]:
    """`short_run(method)`: its recipe and the folder of a run of 16 steps that nobody stopped.

    Made once, also where tests run side by side, so nobody may change what is in the folder. "everything" is the method
    that uses every contract.
    """
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
