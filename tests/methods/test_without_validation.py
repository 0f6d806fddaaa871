"""Every method runs without validation images, and says what it would have used them for."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.runs import run
from osp import Recipe
from osp.methods import available, get

USERS = {"uasd", "ds3l", "curriculum", "safe-student"}
QUICK = {*USERS, "osp"}
"""The others do not look at validation images."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in available()]
)
def test_no_validation_images_are_needed(name: str, tmp_path: Path) -> None:
    options = {"batch": 8, **({"mu": 1} if name != "supervised" else {})}
    recipe = Recipe(method=name, scale="demo", steps=14, val_per_class=0, options=options)
    result = run(recipe, tmp_path / "run").result
    assert result["val_accuracy"] is None
    assert result["accuracy"] is not None
    if name not in ("t2t", "osp"):
        assert (get(name).validation == "nothing") == (name not in USERS)
