"""The steps that are measured: images and time of each method's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from osp.bench.speed import cost, cost_table
from osp.bench.workload import Case, MethodStep, images_of
from osp.methods import available

TINY = Case("cnn", (1, 8, 8), classes=3, batch=4, mu=2, rotation=64, pool=64)


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)


@pytest.mark.parametrize(
    ("method", "learned", "looked_at"),
    [("supervised", 4, 0), ("fixmatch", 4 + 8, 8), ("osp", 4 + 8 + 4 * 64, 8), ("t2t", 4 + 8 + 4 * 64, 8)],
)
def test_images_are_counted_with_and_without_gradient(
    method: str, learned: int, looked_at: int, tmp_path: Path
) -> None:
    step = MethodStep(method, TINY, tmp_path)
    assert images_of(step, step.loop.method) == {"with gradient": learned, "without": looked_at}


QUICK = {"curriculum", "ds3l", "osp", "vat"}
"""Stages, an optimizer of its own, a bank, and a pass of its own."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in available()]
)
def test_every_method_can_be_measured(method: str, tmp_path: Path) -> None:
    step = MethodStep(method, TINY, tmp_path)
    counted = images_of(step, step.loop.method)
    assert counted["with gradient"] >= TINY.batch
    before = [parameter.detach().clone() for parameter in step.loop.method.parameters()]
    for _ in range(3):
        step()
    assert any(not torch.equal(a, b) for a, b in zip(before, step.loop.method.parameters(), strict=True))


def test_the_table_has_the_baseline_at_one(tmp_path: Path) -> None:
    found = cost(["fixmatch"], 1, tmp_path, lambda text: None, case=TINY)
    assert json.loads((tmp_path / "cost.json").read_text())["methods"].keys() == {"supervised", "fixmatch"}
    assert "| supervised | 4 | 0 |" in cost_table(found)
    assert found["methods"]["supervised"]["against supervised"] == 1
    assert found["methods"]["fixmatch"]["against supervised"] > 0
