"""A run that two processes share is the run of one: losses, weights, averaged weights, partition, bank, streams.

Every method takes some steps on digits with a network that has batch norms, in grouped passes, once in this process and
once in two that run beside it. Thresholds are low, so that every mechanism is at work.

What is exact: whatever is a whole number or a decision (partitions, pseudo-labels, ids in the bank, rows drawn from).
Numbers agree to `TOLERANCE` of the largest in their tensor (of 1 if that is larger): sums of single-precision numbers
are taken in another order, and training enlarges the difference from step to step. VAT's direction is sought with a
long step (ξ = 1): with the usual short one it comes from differences of nearly equal predictions, so from rounding.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.pairs import PROCESSES, in_two, loop_of, train_cases, wait_for
from osp.files import locked
from osp.methods.registry import available
from osp.runs.folder import RunFolder

TOLERANCE = 1e-5


def case(method: str, steps: int = 6, group: int = 20, **options: Any) -> dict[str, Any]:
    options = {"batch": 16, "mu": 2, "lr": 0.01, **options}
    if method == "supervised":
        options.pop("mu")
    return {"method": method, "steps": steps, "group": group, "options": options}


T2T: dict[str, Any] = {
    "pool_batch": 8,
    "pretrain_share": 0.34,
    "pretrain_lr": 0.01,
    "refresh": 0.5,
    "threshold": 0.2,
    "ramp": 0.0,
}
OSP: dict[str, Any] = {**T2T, "delta": 0.2, "recyclable_share": 0.5, "bank_capacity": 12}
ALL_ASIDE: dict[str, Any] = {"recyclable": "absolute", "recyclable_below": 1.0}
SSB = case("ssb", threshold=0.3, negative_below=0.5, detector_steps=0, detector_share=0.4, hidden=32)

CASES = {
    "supervised": case("supervised", group=0, input_noise=0.1),
    "fixmatch": case("fixmatch", threshold=0.3),
    "osp": case("osp", **OSP),
    "osp each step": case("osp", **OSP, **ALL_ASIDE, bank_feed="iteration"),
    "osp both feeds": case("osp", **OSP, **ALL_ASIDE, bank_feed="both", least_share=0.1, match="random"),
    "osp as published": case(
        "osp",
        **{**OSP, "least_share": 0.0, "joint_weak": True, "rotation_pass": "own", "partition_by": "matching"},
        unlabeled_matching="entropy",
        cut_by="otsu",
    ),
    "ssb": SSB,
    "ssb at rest": {**SSB, "first": 3},
    "curriculum": case("curriculum", steps=7, admission=0.5, average=0.6),
    "dac": case("dac", threshold=0.3, head_threshold=0.3, start=0.2, memory_batches=2, threshold_every=0.3),
    "ds3l": case("ds3l", ramp=0.0),
    "iomatch": case("iomatch", threshold=0.3, open_threshold=0.2, open_from=0.0, align=True, align_batches=4),
    "mixmatch": case("mixmatch", ramp=0.0),
    "mtc": case("mtc", steps=14, domain_share=0.72, domain_refresh=0.05, refresh=0.3),
    "openmatch": case("openmatch", threshold=0.3, select_from=0.34, refresh=0.5),
    "otct": case("otct"),
    "pi-model": case("pi-model", ramp=0.0, input_noise=0.1),
    "pseudo-label": case("pseudo-label", threshold=0.3, ramp=0.0),
    "safe-student": case("safe-student", teacher_share=0.34, rounds=2),
    "softmatch": case("softmatch"),
    "t2t": case("t2t", **T2T),
    "t2t by muon": case("t2t", **T2T, optimizer="muon", one_schedule=True),
    "uasd": case("uasd", start=0.2, ramp=0.0, refresh=0.3),
    "uda": case("uda", threshold=0.3, least_share=0.1),
    "vat": case("vat", ramp=0.0, xi=1.0),
}


QUICK = ("osp", "ssb at rest", "curriculum")
"""A bank and a memory of scores, parameters without gradient, stages that begin anew."""


def quick_and_slow(*names: str) -> list[Any]:
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The cases that tests of this round are about."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names = {*QUICK, *(item.callspec.params.get("name") for item in items)}
    return {name: each for name, each in CASES.items() if name in names}


@pytest.fixture(scope="module")
def runs(asked: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """These cases, in one process and in two; made once, also where tests run side by side."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "several-processes"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            both = in_two(train_cases, folder / "two", asked)
            threads = torch.get_num_threads()
            try:
                train_cases(folder / "one", asked)
                wait_for(both)
            finally:
                torch.set_num_threads(threads)
                for process in both.processes:
                    process.kill()
            (folder / "complete").touch()
    return folder


def state(folder: Path, rank: int, name: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(folder / str(rank) / f"{name}.pt", weights_only=True)
    return found


def test_every_method_is_here() -> None:
    assert {each["method"] for each in CASES.values()} == set(available())


@pytest.mark.parametrize("name", quick_and_slow(*CASES))
def test_two_processes_end_where_one_does(name: str, runs: Path) -> None:
    alone = state(runs / "one", 0, name)
    for rank in range(PROCESSES):
        shared = state(runs / "two", rank, name)
        assert shared.keys() == alone.keys()
        for key, wanted in alone.items():
            found = shared[key]
            if not wanted.is_floating_point():
                assert torch.equal(found, wanted), key
            else:
                scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
                assert found.shape == wanted.shape, key
                assert float((found - wanted).abs().max() if found.numel() else 0) <= TOLERANCE * scale, key


@pytest.mark.parametrize("name", quick_and_slow(*CASES))
def test_two_processes_write_the_losses_of_one_once(name: str, runs: Path) -> None:
    def lines(folder: Path) -> list[dict[str, Any]]:
        return RunFolder(folder / name).read_metrics()

    alone, shared = lines(runs / "one"), lines(runs / "two")
    assert [(line["step"], line["kind"]) for line in shared] == [(line["step"], line["kind"]) for line in alone]
    for one, two in zip(alone, shared, strict=True):
        if one["kind"] == "train":
            assert two["loss"] == pytest.approx(one["loss"], rel=TOLERANCE)
            assert two["images_seen"] == one["images_seen"]


def test_both_processes_have_the_same_to_the_bit(asked: dict[str, Any], runs: Path) -> None:
    for name in asked:
        first, second = (state(runs / "two", rank, name) for rank in range(PROCESSES))
        assert [key for key in first if not torch.equal(first[key], second[key])] == []


@pytest.mark.parametrize("name", quick_and_slow("osp", "osp each step", "osp both feeds", "mtc", "dac", "curriculum"))
def test_the_mechanisms_were_at_work(name: str, runs: Path) -> None:
    """A comparison of idle parts would say nothing."""
    found = state(runs / "one", 0, name)
    if name == "mtc":
        assert len(set(found["soft"].tolist())) > 10
    elif name == "dac":
        assert found["memory.embeddings"].any()
    elif name == "curriculum":
        assert found["admitted_rows"].any()
    else:
        assert found["kept_rows"].any()
        assert found["bank.written"].sum() > 5


def test_parameters_that_rest_stay_untouched(runs: Path, tmp_path: Path) -> None:
    """SSB's detector has no gradient before its stage: weight decay and momentum must leave it alone."""
    start = loop_of(tmp_path, SSB).method.state_dict()
    for rank in range(PROCESSES):
        found = state(runs / "two", rank, "ssb at rest")
        detector = [name for name in start if name.startswith("own_score")]
        assert detector
        assert [name for name in detector if not torch.equal(found[name], start[name])] == []
        assert not torch.equal(found["net.classifier.0.weight"], start["net.classifier.0.weight"])
