"""What is asked of the machine is checked before it is done."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.runs import Recorder, Stopper, run
from osp import Recipe, UserError
from osp.engine.devices import bytes_per_image
from osp.engine.signals import Interrupted
from osp.engine.state import changes
from osp.machine import cores, memory, threads
from osp.nets import build_network
from osp.runs.folder import RunFolder

OPTIONS = {"batch": 8, "mu": 2}


def asked(**fields: Any) -> Recipe:
    return Recipe(**{"method": "fixmatch", "scale": "demo", "steps": 6, "threads": 1, "options": OPTIONS, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"threads": 100_000}, "threads"),
        ({"threads": 10**18}, "threads"),
        ({"options": {"mu": 10**8}}, "GB"),
        ({"options": {"batch": 10**9}}, "GB"),
        ({"image_size": 1024, "options": {"batch": 10**5}}, "GB"),
        ({"method": "vat", "options": {"power_iterations": 10**18}}, "power_iterations"),
        ({"network": "wrn-28-400"}, "million parameters"),
        ({"data_dir": "a\0b", "data": "mnist"}, "no file name"),
        ({"data_dir": "\ud800", "data": "mnist"}, "no file name"),
    ],
)
def test_what_no_machine_can_do_is_refused_before_anything_is_written(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        run(asked(**fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_this_machine_has_cores_and_memory() -> None:
    assert cores() >= 1
    assert (memory() or 2**30) > 2**28


def test_a_larger_image_keeps_more_for_its_gradient_and_the_network_stays_as_it_was() -> None:
    encoder = build_network("wrn-10-1", (3, 32, 32), 5).encoder.eval()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    small, large = bytes_per_image(encoder, (3, 32, 32)), bytes_per_image(encoder, (3, 64, 64))
    assert small is not None
    assert large is not None
    assert 3.9 < large / small < 4.1
    assert small > 32 * 32 * 16 * 4  # at the least the maps of the stem
    assert not encoder.training
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


def test_a_loss_that_is_no_number_names_its_term_and_keeps_its_batch(tmp_path: Path) -> None:
    recipe = asked(method="supervised", network="wrn-10-1", steps=30, log_every=5, options={"batch": 8, "lr": 1e20})
    with pytest.raises(UserError, match=r"no longer a number at step \d+ \(.*ce.*failed-batch.npz"):
        run(recipe, tmp_path / "run")
    with np.load(tmp_path / "run/failed-batch.npz") as kept:
        assert kept["labeled/weak"].shape[0] == 8
        assert "ce" in kept["terms"].tolist()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_a_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    try:
        with pytest.raises(Interrupted):
            run(asked(), tmp_path / "run", display=Stopper(3, signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    display = Recorder()
    run(Recipe(), tmp_path / "run", resume=True, display=display)
    assert any("step 3 of 6" in text for text in display.said)


def test_checkpoints_come_by_steps_as_asked_and_an_exception_between_steps_saves(tmp_path: Path) -> None:
    class Broken(Recorder):
        def step(self, done: int, stage: str) -> None:
            if done == 5:
                raise RuntimeError("the display")

    with pytest.raises(RuntimeError):
        run(asked(save_every=2), tmp_path / "run", display=Broken())
    assert RunFolder(tmp_path / "run").previous.exists()


def test_other_threads_and_versions_are_told() -> None:
    assert changes({"torch": str(torch.__version__)}, torch.get_num_threads(), "cpu") == []
    assert len(changes({"torch": "1.0"}, 77, "cpu")) == 2
    assert len(changes({"torch": "1.0"}, 77, "cuda")) == 1


@pytest.mark.parametrize(
    ("asked_for", "workers", "of", "each"),
    [(None, 1, 8, 8), (None, 3, 8, 2), (None, 9, 8, 1), ("1", 1, 8, 1), ("3", 2, 8, 3), ("6", 2, 8, 4), ("0", 1, 8, 8)],
)
def test_runs_side_by_side_share_the_cores_and_keep_to_what_the_environment_allows(
    asked_for: str | None, workers: int, of: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked_for is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked_for)
    assert threads(workers, of) == each
