"""A run stopped anywhere and resumed ends as one that was never stopped, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import STEPS, TiedNet, assert_same_run, result, small
from torch import nn

import osp.engine.state as state_module
from helpers.runs import Recorder, Stopper, run, weights
from osp import Recipe, UserError
from osp.data.split import Split
from osp.engine.loop import Loop
from osp.engine.signals import Interrupted
from osp.methods import available
from osp.runs.checkpoint import load_checkpoint
from osp.runs.folder import RunFolder

Unstopped = Callable[[str], tuple[Recipe, Path]]
"""The fixture `short_run`."""
STOPS = (1, 4, 7)


def stop(recipe: Recipe, out: Path, at: int, signal_number: int = signal.SIGINT, **more: Any) -> None:
    with pytest.raises(Interrupted):
        run(recipe, out, display=Stopper(at, signal_number), **more)


def stops() -> Iterator[Any]:
    """Each method at each stop; one of its stops, by its name, is quick, the others are slow."""
    for method in available():
        quick = STOPS[zlib.crc32(method.encode()) % len(STOPS)]
        for at in STOPS:
            yield pytest.param(method, at, marks=[] if at == quick else [pytest.mark.slow])


@pytest.mark.parametrize(("method", "at"), list(stops()))
def test_a_resumed_run_equals_one_never_stopped(method: str, at: int, short_run: Unstopped, tmp_path: Path) -> None:
    recipe, whole = short_run(method)
    stop(recipe, tmp_path / "run", at, signal.SIGTERM)
    assert load_checkpoint(RunFolder(tmp_path / "run").last)[1]["done"] == at
    run(recipe, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("at", [pytest.param(2, marks=pytest.mark.slow), 7])
def test_what_short_runs_on_colour_images_take_survives_a_stop(at: int, tmp_path: Path) -> None:
    options = {"optimizer": "muon", "schedule": "cosine", "one_schedule": True}
    recipe = small("t2t", steps=9, network="fast", options=options)
    stop(recipe, tmp_path / "run", at)
    run(recipe, tmp_path / "run", resume=True)
    run(recipe, tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6, 9, 10, 12, 13, 15])
def test_stages_refreshes_banks_and_extra_optimisers_survive_a_stop(
    at: int, short_run: Unstopped, tmp_path: Path
) -> None:
    recipe, whole = short_run("everything")
    stop(recipe, tmp_path / "run", at)
    run(recipe, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_many_stops_change_nothing(short_run: Unstopped, tmp_path: Path) -> None:
    recipe, whole = short_run("everything")
    stop(recipe, tmp_path / "run", 1)
    for at in (4, 5, 11, 12):
        stop(recipe, tmp_path / "run", at, resume=True)
    run(recipe, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_hooks_are_called_once_each_where_they_belong(short_run: Unstopped) -> None:
    _, whole = short_run("everything")
    state = weights(whole)
    begun, refreshed, ended, stepped = state["method/hooks"].tolist()
    assert (begun, ended, stepped) == (3, 3, STEPS)
    # Eight steps refreshed at 0, 2.4, 4.8, 7.2, rounded; four steps at 0 and 2.
    assert refreshed == 4 + 2
    assert len(state["method/bank"]) == 3 * refreshed
    visited = (state["method/accumulated"] != 0).any(dim=1).sum()
    assert 8 < visited <= 8 * 12


def test_only_a_mechanism_that_never_acted_is_a_warning(short_run: Unstopped) -> None:
    """`kept` and `moved` are logged by hooks alone, `never` at each step but always 0."""
    _, whole = short_run("everything")
    assert [warning.split()[1] for warning in result(whole)["warnings"]] == ["never"]


def test_a_signal_during_the_last_step_does_not_keep_the_run_from_ending(short_run: Unstopped, tmp_path: Path) -> None:
    recipe, whole = short_run("fixmatch")
    run(recipe, tmp_path / "run", display=Stopper(STEPS, signal.SIGTERM))
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("method", ["fixmatch", "everything"])
@pytest.mark.parametrize("final_model_written", [False, True])
def test_a_run_that_breaks_off_before_its_result_is_written_is_taken_up(
    method: str,
    final_model_written: bool,
    short_run: Unstopped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, whole = short_run(method)

    def broken(*arguments: Any) -> None:
        raise SystemError("the power failed")

    with monkeypatch.context() as patch:
        patch.setattr(state_module, "CHECKPOINT_SECONDS", -1.0)  # a checkpoint after every step
        if final_model_written:
            patch.setattr(RunFolder, "write_result", broken)
        else:
            patch.setattr(Loop, "save_model", broken)
            patch.setattr(Loop, "evaluate", lambda self, step: None)
        with pytest.raises(SystemError):
            run(recipe, tmp_path / "run")
    run(recipe, tmp_path / "run", resume=True)
    if final_model_written:
        assert_same_run(tmp_path / "run", whole)
    else:  # validations were left out above, which only the log shows
        assert result(tmp_path / "run") == result(whole)


def test_a_crash_before_the_first_checkpoint_leaves_no_trace_in_the_log(
    short_run: Unstopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, whole = short_run("fixmatch")
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "step", crash_at(8))
        with pytest.raises(SystemError):
            run(recipe, tmp_path / "run", display=Recorder())
    assert not RunFolder(tmp_path / "run").last.exists()
    assert RunFolder(tmp_path / "run").read_metrics()
    run(recipe, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


def crash_at(step: int) -> Callable[[Recorder, int, str], None]:
    def crash(display: Recorder, done: int, stage: str) -> None:
        if done == step:
            raise SystemError

    return crash


KILLED = """
import sys
from osp import Recipe
from osp.engine.train import train
from helpers.runs import Recorder

class Waits(Recorder):
    def step(self, done, stage):
        import time
        print(done, flush=True)
        time.sleep(0.05 if done < 11 else 600)

recipe = Recipe.read(sys.argv[1]).changed(method=sys.argv[3])
train(recipe.changed(save_seconds=0.2), sys.argv[2], display=Waits())
"""


def test_a_killed_process_loses_only_what_came_after_its_last_checkpoint(short_run: Unstopped, tmp_path: Path) -> None:
    recipe, whole = short_run("everything")
    method = recipe.method or ""
    (tmp_path / "recipe.yaml").write_text(recipe.changed(method=None).dump(), encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "recipe.yaml"), str(tmp_path / "run"), method],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    folder = RunFolder(tmp_path / "run")
    assert process.stdout is not None
    while process.stdout.readline().strip() not in (b"11", b""):
        pass
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    done = load_checkpoint(folder.last)[1]["done"]
    assert 0 < done <= 11
    run(recipe, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    class Impatient(Recorder):
        def step(self, done: int, stage: str) -> None:
            if done == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path / "run", display=Impatient())
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_is_returned_as_it_is_and_says_so(short_run: Unstopped, tmp_path: Path) -> None:
    recipe, shared = short_run("supervised")
    whole = shutil.copytree(shared, tmp_path / "whole")  # other tests may hold the shared one
    before = RunFolder(whole).last.stat().st_mtime_ns
    display = Recorder()
    again = run(recipe, whole, resume=True, display=display)
    assert {key: value for key, value in again.result.items() if key != "seconds"} == result(whole)
    assert display.said == [f"The run in {whole} is finished."]
    assert RunFolder(whole).last.stat().st_mtime_ns == before


def test_changed_options_are_refused_by_name(tmp_path: Path) -> None:
    stop(small("fixmatch"), tmp_path / "run", 2)
    changed = small("fixmatch", seed=3, steps=13, options={"threshold": 0.5})
    with pytest.raises(UserError) as refused:
        run(changed, tmp_path / "run", resume=True)
    message = str(refused.value)
    assert "steps is 12 there, 13 here" in message
    assert "seed is 0 there, 3 here" in message
    assert "threshold" in message
    assert "network" not in message


def test_where_and_how_may_change_on_resume(tmp_path: Path) -> None:
    stop(small(), tmp_path / "run", 2)
    finished = run(small(device="cpu", data_dir=str(tmp_path), threads=2), tmp_path / "run", resume=True)
    assert finished.result["steps"] == 12


def test_resuming_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no run in .*nothing to resume"):
        run(small(), tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


def test_a_second_start_in_the_same_folder_is_refused(short_run: Unstopped, tmp_path: Path) -> None:
    recipe, shared = short_run("supervised")
    whole = shutil.copytree(shared, tmp_path / "whole")
    with pytest.raises(
        UserError, match=r"is not empty\. Continue that run with --resume.*in Python: resume=True, or another out="
    ):
        run(recipe, whole)


@pytest.mark.parametrize("left", ["", "metrics.jsonl", "checkpoints/last.safetensors", "result.json", "notes.txt"])
def test_a_folder_where_nothing_was_trained_yet_is_used_again(left: str, tmp_path: Path) -> None:
    source = "from osp.methods.supervised import Supervised as Base\nclass Mine(Base):\n    name = 'mine'\n"
    (mine := tmp_path / "mine.py").write_text(source + "    def losses(self, batch, step): return batch\n", "utf-8")
    with pytest.raises(UserError, match=r"losses: the term 'labeled' is a Sample; one number is wanted"):
        run(small(str(mine), seed=5), tmp_path / "run")
    mine.write_text(source, "utf-8")
    with pytest.raises(UserError, match=r"is not the one that the run in .* Start a new run with another --out"):
        run(small(str(mine)), tmp_path / "run", resume=True)
    if left:
        (tmp_path / "run" / left).write_text("x", "utf-8")
        with pytest.raises(UserError, match="is not empty"):
            run(small(str(mine)), tmp_path / "run")
        return
    for name in ("run", "fresh"):
        run(small(str(mine)), tmp_path / name)
    again, fresh = (Split.load(tmp_path / name / "split.npz").digest() for name in ("run", "fresh"))
    assert again == fresh
    assert "seed: 5" not in (tmp_path / "run" / "recipe.yaml").read_text("utf-8")


def test_two_processes_in_one_run_are_refused(tmp_path: Path) -> None:
    stop(small(), tmp_path / "run", 2)
    held = f"""
from pathlib import Path
from osp.runs.folder import RunFolder
with RunFolder(Path({str(tmp_path / "run")!r})).owned():
    print("held", flush=True)
    input()
"""
    other = subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="Another process is training"):
        run(small(), tmp_path / "run", resume=True)
    other.communicate("\n")
    assert run(small(), tmp_path / "run", resume=True).result["steps"] == 12


def test_a_network_of_ones_own_resumes_too(tmp_path: Path) -> None:
    """With batch norm, dropout of torch's own and tied weights; the module that was given is left as it was."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(1), TiedNet(), nn.Dropout(0.3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    train = partial(run, small(), network=network)
    train(out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(out=tmp_path / "run", display=Stopper(5, signal.SIGINT))
    train(out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    learned = weights(tmp_path / "run")
    assert not torch.equal(learned["method/net.encoder.1.first.weight"], before["1.first.weight"])
    assert torch.equal(learned["method/net.encoder.1.first.weight"], learned["method/net.encoder.1.second.weight"])


def test_fresh_weights_of_a_network_of_ones_own_are_the_ones_it_came_with(tmp_path: Path) -> None:
    """A learning rate too small to see: after the fresh second stage every weight is what the module brought."""
    torch.manual_seed(0)
    network = TiedNet()
    source = """
import torch
from osp.methods.supervised import Supervised as Base

class Cycles(Base):
    def stages(self):
        return [self.stage(share=1, lr=1.0), self.stage(share=1, lr=1e-30, weight_decay=0.0, fresh=True)]
"""
    (tmp_path / "cycles.py").write_text(source, encoding="utf-8")
    run(small(str(tmp_path / "cycles.py"), steps=4), tmp_path / "run", network=network)
    learned = weights(tmp_path / "run")
    assert torch.equal(learned["method/net.encoder.first.weight"], network.first.weight)


def test_a_fresh_stage_starts_its_extra_optimisers_anew(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
from osp.methods import ExtraOptimizer
from osp.methods.supervised import Supervised as Base

class Extra(Base):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = nn.Parameter(torch.ones(1))

    def stages(self):
        return [self.stage(), self.stage(fresh=True)]

    def extra_optimizers(self):
        return {"scale": ExtraOptimizer([self.scale], "adam")}

    def extra_losses(self, batch, step):
        return {"scale": self.scale.square().sum()}
"""
    (tmp_path / "extra.py").write_text(source, encoding="utf-8")
    stop(small(str(tmp_path / "extra.py"), steps=10), tmp_path / "run", at=7)
    saved = weights(tmp_path / "run")
    assert saved["extra/scale/0/step"].item() == 2  # five steps before the fresh start, two after it
    assert 1 - 2 * 1e-3 - 1e-5 < saved["method/scale"].item() < 1  # Adam's first steps are 0.001 each


CONTINUES = """
from osp.methods import StreamSpec
from osp.methods.supervised import Supervised as Base


class Continued(Base):
    def stages(self):
        first = self.stage(name="first", share=0.5)
        return [first, self.stage(name="second", share=0.5, continues=True)] if self.options.mu > 1 else [self.stage()]
"""


def test_a_stage_that_continues_keeps_momentum_and_rate_also_when_resumed_there(tmp_path: Path) -> None:
    file = tmp_path / "continued.py"
    file.write_text(CONTINUES)
    single = run(small(str(file), options={"mu": 1}), tmp_path / "single")
    double = run(small(str(file), options={"mu": 2}), tmp_path / "double")
    stop(small(str(file), options={"mu": 2}), tmp_path / "stopped", at=6)
    resumed = run(small(str(file), options={"mu": 2}), tmp_path / "stopped", resume=True)
    for other in (double, resumed):
        for name, tensor in weights(single.path).items():
            assert torch.equal(tensor, weights(other.path)[name]), name
