"""The first losses of every method are those on record: whoever changes what a method or the harness computes notices.

A result is stale once the numbers behind it have changed, and only a version says so. When this test fails and the
change was meant:

1. raise `version` of the method, or `HARNESS_VERSION` in `osp/version.py` where most methods have changed;
2. write the new losses: `python tests/methods/test_fingerprints.py` (all), or with names of methods behind it;
3. say in the commit why they changed.

The first three losses of eight steps on digits on one thread, with the options of version 0.1, whose runs are the
oldest: a relative 1e-3 is far above what processors differ by so early; those with two stages have begun the second.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from osp import Recipe
from osp.engine.train import train
from osp.methods.registry import available, get
from osp.runs.folder import RunFolder
from osp.version import HARNESS_VERSION

FILE = Path(__file__).with_name("fingerprints.json")
FIRST = 3
TOLERANCE = 1e-3


def first_losses(method: str, folder: Path) -> list[float]:
    """The total loss of each of the first steps."""
    short = {"steps": 8, "log_every": 1, "eval_every": 8, "threads": 1, "device": "cpu"}
    train(Recipe(method=method, preset="v0.1", scale="demo", **short), folder / method)
    lines = RunFolder(folder / method).read_metrics()
    return [line["loss"] for line in lines if line.get("kind") == "train"][:FIRST]


def recorded() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


@pytest.mark.parametrize("method", available())
def test_the_first_losses_are_those_on_record(method: str, tmp_path: Path) -> None:
    record = recorded().get(method)
    assert record is not None, f"no losses of {method} on record: python {Path(__file__).name} {method}"
    versions = {"harness": HARNESS_VERSION, "method": get(method).version}
    assert {key: record[key] for key in versions} == versions, "a version was raised: write the new losses (see above)"
    assert first_losses(method, tmp_path) == pytest.approx(record["losses"], rel=TOLERANCE)


def test_a_change_of_two_thousandths_would_be_noticed() -> None:
    losses = recorded()["supervised"]["losses"]
    assert [loss * 1.002 for loss in losses] != pytest.approx(losses, rel=TOLERANCE)


def update(methods: list[str]) -> None:
    """Write the losses of these methods."""
    content = recorded() if FILE.exists() else {}
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            losses = first_losses(method, Path(folder))
        content[method] = {"harness": HARNESS_VERSION, "method": get(method).version, "losses": losses}
        FILE.write_text(json.dumps(dict(sorted(content.items())), indent=1) + "\n")


if __name__ == "__main__":
    update(sys.argv[1:] or available())
