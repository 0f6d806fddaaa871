"""The picture of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import osp
from osp import Recipe


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fixmatch"},
        {"method": "supervised", "unlabeled": 0},
        {"method": "supervised", "unlabeled": 10, "ood_ratio": 0.0},
        {"method": "supervised", "ood_ratio": 0.0, "id_classes": [0, 1], "val_per_class": 0},
    ],
)
def test_every_run_has_a_picture_with_something_in_it(fields: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe(scale="demo", steps=4, options={"batch": 8}, **fields)
    run = osp.train(recipe, tmp_path / "run")
    with Image.open(run.path / "result.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert min(pixels.shape) > 300
    assert 0.02 < (pixels < 250).mean() < 0.95
    assert not [path for path in run.path.iterdir() if "partial" in path.name]
