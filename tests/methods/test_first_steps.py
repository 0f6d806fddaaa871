"""The quick form of "it learns", which the methods' own files show over seeds: the loss falls, no part is idle."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from helpers.runs import run
from osp import Recipe
from osp.methods import available
from osp.runs.folder import RunFolder

STEPS = dict.fromkeys(available(), 60) | {"curriculum": 120, "safe-student": 120, "mixmatch": 120}
"""More where a stage begins anew or labels are mixed."""
AT_ONCE: dict[str, dict[str, Any]] = {
    "curriculum": {"admission": 1.0},
    "dac": {"threshold": 0.3, "head_threshold": 0.3, "start": 0.2},
    "ds3l": {"ramp": 0.0},
    "ssb": {"threshold": 0.3, "negative_below": 0.5, "detector_steps": 0, "hidden": 32},
}
"""Options by which mechanisms that usually wait act within so few steps."""


@pytest.mark.parametrize("method", available())
def test_the_loss_on_labels_falls_and_every_mechanism_acts(method: str, tmp_path: Path) -> None:
    """Seen: the last quarter's mean is 0.44 to 0.86 of that of the first five steps."""
    steps = STEPS[method]
    own: dict[str, Any] = {} if method == "supervised" else {"mu": 2}
    fields: dict[str, Any] = {"scale": "demo", "steps": steps, "eval_every": steps, "log_every": 1, "threads": 1}
    options = {"batch": 16, **own, **AT_ONCE.get(method, {})}
    done = run(Recipe(method=method, labels_per_class=10, options=options, **fields), tmp_path / "run")
    lines = [line for line in RunFolder(done.path).read_metrics() if "ce" in line]
    if method == "curriculum":  # its later cycles begin anew, and with its own labels for OOD images
        lines = [line for line in lines if line["stage"] == "cycle 0"]
    losses = [line["ce"] for line in lines]
    assert mean(losses[-len(losses) // 4 :]) < 0.95 * mean(losses[:5])
    assert not [warning for warning in done.result["warnings"] if "idle" in warning]
