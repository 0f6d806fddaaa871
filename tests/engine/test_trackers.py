"""Trackers: the real packages where they are installed, without an account and without a word to anybody."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import small

from helpers.runs import Recorder, Stopper, run
from osp import Recipe
from osp.engine import trackers
from osp.engine.progress import Display
from osp.engine.records import Records
from osp.engine.signals import Interrupted
from osp.engine.trackers import check_trackers, described
from osp.errors import UserError
from osp.recipe import make_plan
from osp.runs.folder import RunFolder


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whom this process tries to reach beyond this machine."""
    reached: list[Any] = []
    connect = socket.socket.connect

    def noted(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            reached.append(address)
            raise OSError("no network in this test")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    return reached


def test_mlflow_keeps_the_numbers_in_the_run_folder(
    tmp_path: Path, nowhere: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example.org")  # meant for other work
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(small(tracker=("mlflow",)), path, display=Stopper(3))
    done = run(Recipe(), path, resume=True)
    client = tracking.MlflowClient((path / "mlflow").as_uri())
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert found.info.status == "FINISHED"
    logged = {name: {m.step: m.value for m in client.get_metric_history(found.info.run_id, f"train/{name}")}
              for name in ("loss", "lr")}  # fmt: skip
    for line in RunFolder(path).read_metrics():
        if line["kind"] == "train":
            assert logged["loss"][line["step"]] == pytest.approx(line["loss"])
    assert found.data.metrics["result/accuracy"] == pytest.approx(done.result["accuracy"])
    assert "data_dir" not in found.data.params
    assert nowhere == []


WANDB = """
import sys
from small_runs import small
from helpers.runs import run
from pathlib import Path
run(small(tracker=("wandb",)), Path(sys.argv[1]))
"""


def test_wandb_writes_an_offline_run_without_an_account(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    home = tmp_path / "home"
    home.mkdir()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    paths = os.pathsep.join(filter(None, sys.path))
    given = {
        **clean,
        "HOME": str(home),
        "PYTHONPATH": paths,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", WANDB, str(tmp_path / "run")]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    losses = [line["loss"] for line in RunFolder(tmp_path / "run").read_metrics() if line["kind"] == "train"]
    assert sum(json.dumps(loss).encode() in content for loss in losses) >= len(losses) - 1  # one may lie across blocks
    assert b"result/accuracy" in content
    assert not (home / ".netrc").exists()


def found_where(monkeypatch: pytest.MonkeyPatch, package: str, spec: object) -> None:
    """Let this package be installed, or not."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: spec if name == package else find(name, *more))


class Broken:
    def write(self, step: int, values: Any) -> None:
        raise ConnectionError("the server is away")

    def close(self, finished: bool) -> None: ...


def test_a_tracker_that_fails_is_dropped_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found_where(monkeypatch, "tensorboard", object())
    monkeypatch.setitem(trackers.KINDS, "tensorboard", lambda *_: Broken())
    display = Recorder()
    done = run(small(tracker=("tensorboard",)), tmp_path / "run", display=display)
    assert done.result["accuracy"] >= 0
    assert len([text for text in display.said if "the server is away" in text]) == 1
    assert RunFolder(tmp_path / "run").read_metrics()


def test_a_missing_package_is_told_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    found_where(monkeypatch, "wandb", None)
    with pytest.raises(UserError, match=r"pip install .*\[wandb\]'"):
        check_trackers(make_plan(Recipe(tracker="wandb:online")))


def test_unknown_trackers_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="there is no tracker 'comet'"):
        Recipe(tracker="comet")
    assert Recipe(tracker="wandb, mlflow:online").tracker == ("wandb", "mlflow:online")
    with pytest.raises(UserError, match="tensorboard:online"):
        Recipe(tracker="tensorboard:online")


def test_trackers_change_nothing_that_a_run_is() -> None:
    plain, with_tracker = make_plan(Recipe(data_dir="/home/me")), make_plan(Recipe(tracker="wandb"))
    assert plain.identity() == with_tracker.identity()
    assert not [value for value in described(plain).values() if "/home/me" in str(value)]


def test_no_tracker_sets_nothing_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in trackers.QUIET:
        monkeypatch.delenv(name, raising=False)
    with Records(RunFolder(tmp_path), Display()).tracked(make_plan(Recipe())):
        assert not set(trackers.QUIET) & set(os.environ)
    assert not set(trackers.QUIET) & set(os.environ)
