"""Small finished runs on digits for the tests of figures and pages, made once per process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import osp
from osp import Recipe
from osp.runs.run import Run

STEPS = 12


@cache
def finished(method: str = "osp", seed: int = 0, steps: int = STEPS, **options: Any) -> Run:
    """A run of a few steps: OSP's bank is filled, little is learned."""
    options = {"batch": 16, **options}
    recipe = Recipe(method=method, scale="demo", steps=steps, eval_every=steps // 3, seed=seed, options=options)
    path = Path(mkdtemp(prefix="osp-finished-")) / f"{method}-{seed}"
    return Run.read(osp.train(recipe, path, progress=False).path)
