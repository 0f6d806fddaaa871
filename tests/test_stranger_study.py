"""scripts/stranger_study.py draws piles as it says; where kinds lie apart, what is said of them is near the truth."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "stranger_study", Path(__file__).parents[1] / "scripts/stranger_study.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_of_each_pile_the_shares_that_are_named_are_left_and_what_is_said_is_near_the_truth(study: ModuleType) -> None:
    draws = np.random.default_rng(0)
    classes = np.repeat(np.arange(4), 60)
    features = (4 * np.eye(16)[classes] + draws.normal(0, 0.5, (240, 16))).astype(np.float32)
    for pile, (known, unknown) in study.PILES.items():
        instant, asked, truth = study.fits(features, classes, 2, 10, 1, (known, unknown))
        assert (truth >= 0).sum() == round(known * 50) * 2
        assert (truth < 0).sum() == round(unknown * 60) * 2
        assert set(np.unique(truth)) <= {-1, 0, 1}
        off, covered, strangers, sure, right = study.figures(instant, instant.belonging, features[asked], truth)
        assert covered in (0.0, 100.0)
        assert off < 30, pile  # 23 at most; with twenty labels few unknown photos are not seen
        assert strangers < 30, pile
        assert 0 <= sure <= 100
        assert np.isnan(right) or right > 90, pile
