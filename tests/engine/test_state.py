"""Checkpoints that are damaged, foreign or missing, and folders in which a start was cut off."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same_run, result, small

import osp.engine.state as state_module
from helpers.runs import Recorder, Stopper, run
from osp import UserError
from osp.engine.signals import Interrupted
from osp.runs.checkpoint import load_checkpoint, save_checkpoint
from osp.runs.folder import RunFolder


def stopped(path: Path, at: int = 8, monkeypatch: pytest.MonkeyPatch | None = None) -> RunFolder:
    """A run of fixmatch stopped after some steps, with a checkpoint after every step where time is faked."""
    if monkeypatch is not None:
        monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", -1.0)
    with pytest.raises(Interrupted):
        run(small("fixmatch"), path, display=Stopper(at, signal.SIGINT))
    return RunFolder(path)


def test_a_method_whose_score_is_fitted_at_the_end_is_saved(tmp_path: Path) -> None:
    source = """
from osp import scores
from osp.methods.supervised import Supervised as Base


class Fits(Base):
    name = "fits"

    def __init__(self, options, network, task):
        super().__init__(options, network, task)
        self.use_score(scores.build("knn", network.feature_dim, task.num_classes))
"""
    (tmp_path / "fits.py").write_text(source, encoding="utf-8")
    with pytest.raises(Interrupted):
        run(small(str(tmp_path / "fits.py")), tmp_path / "run", display=Stopper(8, signal.SIGINT))
    assert load_checkpoint(RunFolder(tmp_path / "run").last)[1]["done"] == 8


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "text"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_goes_on(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(small("fixmatch"), tmp_path / "whole").path
    folder = stopped(tmp_path / "run", monkeypatch=monkeypatch)
    assert [load_checkpoint(each)[1]["done"] for each in (folder.previous, folder.last)] == [7, 8]
    content = bytearray(folder.last.read_bytes())
    if harm == "gone":  # killed between the two renames
        folder.last.unlink()
    elif harm == "cut":
        folder.last.write_bytes(content[: len(content) // 2])
    elif harm == "text":
        folder.last.write_text("no checkpoint")
    else:
        content[-100] ^= 4
        folder.last.write_bytes(content)
    display = Recorder()
    run(small("fixmatch"), tmp_path / "run", resume=True, display=display)
    assert "Going on from the one before it." in display.said[0]
    assert "Going on at step 7 of 12." in display.said
    assert_same_run(tmp_path / "run", whole)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, {"a": torch.randn(40), "b": torch.arange(5)}, {"done": 3, "words": "abc"})
    content = path.read_bytes()
    for position in range(8, len(content), 7):
        harmed = bytearray(content)
        harmed[position] ^= 1 << position % 8
        path.write_bytes(harmed)
        with pytest.raises(UserError):
            load_checkpoint(path)


def test_weights_that_are_no_numbers_never_take_a_good_checkpoints_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "CHECKPOINT_SECONDS", -1.0)
    recipe = small(network="wrn-10-1", steps=30, options={"lr": 1e20}, log_every=100, eval_every=100)
    with pytest.raises(UserError, match="no longer"):
        run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for path in (folder.last, folder.previous):
        if path.exists():
            tensors, _ = load_checkpoint(path)
            assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())


@pytest.mark.parametrize(
    "change", [{"seed": 9}, {"steps": 11}, {"labels_per_class": 3}, {"options": {"batch": 4}}, {"ood_ratio": 0.3}]
)
def test_a_plan_edited_behind_our_back_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    from osp import Plan

    folder = stopped(tmp_path / "run")
    plan = Plan.read(folder.plan)
    options = {**plan.options, **change.pop("options", {})}
    folder.plan.write_text(plan.changed(**change, options=options).dump(), encoding="utf-8")
    with pytest.raises(UserError):
        run(small("fixmatch").changed(steps=None, options={}), tmp_path / "run", resume=True)


@pytest.mark.parametrize("done", [10**9, -1, "x", None, True])
def test_a_checkpoint_that_stands_nowhere_is_refused(done: Any, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    tensors, meta = load_checkpoint(folder.last)
    save_checkpoint(folder.last, tensors, {**meta, "done": done})
    with pytest.raises(UserError, match="checkpoint"):
        run(small("fixmatch"), tmp_path / "run", resume=True)


def test_a_start_that_was_cut_off_before_its_plan_leaves_a_folder_that_starts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    (folder.path / ".lock").touch()
    (folder.path / ".plan.yaml.abc.partial").write_text("data: di")
    with pytest.raises(UserError, match="no run in"):
        run(small(), folder.path, resume=True)
    assert run(small(), folder.path).result["steps"] == 12


def test_a_start_that_was_cut_off_after_its_plan_resumes(tmp_path: Path) -> None:
    whole = run(small("fixmatch"), tmp_path / "whole").path
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    folder.plan.write_bytes(RunFolder(whole).plan.read_bytes())
    run(small("fixmatch"), folder.path, resume=True)
    assert result(folder.path) == result(whole)
    assert folder.recipe.read_text() == RunFolder(whole).recipe.read_text()


def test_links_in_a_run_folder_are_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = stopped(tmp_path / "run")
    for name in ("result.json", "result.png", "predictions.npz", "model.safetensors", "checkpoints/best.safetensors"):
        (folder.path / name).unlink(missing_ok=True)
        (folder.path / name).symlink_to(victim)
    with pytest.raises(UserError, match="damaged"):  # a result that is a link to something else is no result
        run(small("fixmatch"), folder.path, resume=True)
    folder.result.unlink()
    run(small("fixmatch"), folder.path, resume=True)
    assert victim.read_text() == "mine"
    other = stopped(tmp_path / "other")
    (other.path / ".lock").unlink()
    (other.path / ".lock").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        run(small("fixmatch"), other.path, resume=True)
    assert victim.read_text() == "mine"
