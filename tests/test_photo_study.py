"""scripts/photo_study.py takes from a file of draws only those of its own experiment."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def study() -> Any:
    spec = importlib.util.spec_from_file_location("study", Path(__file__).parents[1] / "scripts" / "photo_study.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "change",
    [{"folder": Path("b")}, {"known": 5}, {"test": 3}, {"methods": []}, {"choose": ["osp"]}, {"single": True}],
)
def test_draws_of_another_experiment_are_not_taken(change: dict[str, Any], study: Any, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "folder": Path("a"),
        "known": 4,
        "test": 2,
        "methods": ["osp"],
        "choose": [],
        "single": False,
    }
    asked, other = (study.experiment(argparse.Namespace(**each)) for each in (own, {**own, **change}))
    lines = [[5, 0, {"x": 1.0}, asked], [5, 1, {"x": 2.0}, other], [5, 2, {"x": 3.0}]]
    (tmp_path / "draws.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert study.noted(tmp_path / "draws.jsonl", asked) == {(5, 0): {"x": 1.0}}
    assert study.noted(tmp_path / "none.jsonl", asked) == study.noted(None, asked) == {}
