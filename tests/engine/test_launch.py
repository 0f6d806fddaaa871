"""`osp train --devices 2` as a user types it: one run, one folder, one voice; a rank that dies, and going on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers import strangers
from helpers.pairs import free_port, in_two, wait_for
from helpers.runs import weights
from helpers.strangers import trap
from osp import Recipe, distributed
from osp.engine.devices import check_several
from osp.engine.launch import LOST, _why, endpoint
from osp.engine.train import train
from osp.errors import UserError
from osp.runs.checkpoint import load_checkpoint
from osp.runs.folder import RunFolder

MINE = textwrap.dedent(
    '''
    """Supervised learning in which a rank may die."""

    import os
    import signal
    import time

    from osp.methods.supervised import Supervised


    class Mine(Supervised):
        def after_step(self, batch, step):
            how = os.environ.get("DIES")
            if step.index == 6 and step.rank == 1 and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if step.index == 6 and step.rank == 1 and how == "broken":
                raise ZeroDivisionError("a fault in the method")
            if how == "slow":
                time.sleep(0.3)
    '''
)
STEPS = 10
SETTINGS = ["--scale", "demo", "--data", "digits", "--steps", str(STEPS), "--unlabeled", "60"]
SETTINGS += ["--set", "device=cpu", "--set", "batch=8", "--set", "log_every=1", "--set", "eval_every=5"]
SETTINGS += ["--set", "save_every=1"]


def osp(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osp", "train", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, "OSP_TIMEOUT": "200", **environment}
    )


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_with_the_reason_and_it_goes_on_with_another_number(tmp_path: Path) -> None:
    mine, shared, alone = tmp_path / "mine.py", tmp_path / "shared", tmp_path / "alone"
    mine.write_text(MINE)
    dead = osp(*SETTINGS, "--method", str(mine), "--out", str(shared), "--devices", "2", DIES="killed")
    assert dead.returncode == 2, dead.stderr
    assert "Rank 1 of the run was ended by SIGKILL" in dead.stderr
    assert f"Continue with: osp train --out {shared} --resume --devices 2" in dead.stderr
    assert "Traceback" not in dead.stderr
    assert time.time() - (shared / "metrics.jsonl").stat().st_mtime < 100  # and not only after the time limit
    assert not (shared / "result.json").exists()

    recipe = Recipe(
        method=str(mine),
        scale="demo",
        data="digits",
        steps=STEPS,
        unlabeled=60,
        device="cpu",
        options={"batch": 8},
        log_every=1,
        eval_every=5,
    )
    train(recipe, shared, resume=True)
    train(recipe, alone)
    one, two = weights(alone), weights(shared)
    assert one.keys() == two.keys()
    for name, wanted in one.items():
        torch.testing.assert_close(two[name], wanted, rtol=1e-4, atol=1e-5)
    lines = [[(line["step"], line["kind"]) for line in RunFolder(each).read_metrics()] for each in (alone, shared)]
    assert lines[0] == lines[1]


def stopped(folder: Path, after: int, *words: str) -> tuple[int, str]:
    """The exit code and the words of a slow run that gets SIGTERM, as a cluster sends it, once this step is logged."""
    environment = {**os.environ, "OSP_TIMEOUT": "200", "DIES": "slow"}
    with open(folder.with_suffix(".log"), "w+") as log:
        process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, env=environment)
        metrics, until = folder / "metrics.jsonl", time.monotonic() + 400
        while process.poll() is None and time.monotonic() < until:
            if metrics.exists() and f'"step": {after},' in metrics.read_text():
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        code = process.wait(300)
        log.seek(0)
        return code, log.read()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_ranks_that_get_sigterm_save_once_and_end_and_go_on_to_the_same_weights(tmp_path: Path) -> None:
    """Stopped once as a run of `--devices 2` and once, going on, under torchrun."""
    (mine := tmp_path / "mine.py").write_text(MINE)
    settings = ["--scale", "demo", "--data", "digits", "--steps", "60", "--unlabeled", "60", "--method", str(mine)]
    for setting in ("device=cpu", "batch=8", "log_every=1", "eval_every=30"):
        settings += ["--set", setting]
    folder, whole = tmp_path / "stopped", tmp_path / "whole"
    again = ["train", "--out", str(folder), "--method", str(mine), "--resume"]
    told = f"Stopped; everything is saved. Continue with: osp train --out {folder} --resume --devices 2\n"

    code, said = stopped(folder, 3, "-m", "osp", "train", *settings, "--out", str(folder), "--devices", "2")
    assert code == 130, said
    assert said.count(told) == 1
    assert said.endswith(told)
    assert "death signal" not in said  # the launcher's own words
    first = RunFolder(folder)
    assert 3 <= load_checkpoint(first.last)[1]["done"] < 60
    assert not first.previous.exists()  # it was saved once

    code, said = stopped(folder, 20, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "osp", *again)
    assert code != 0
    assert said.count(told) == 1
    assert 20 <= load_checkpoint(first.last)[1]["done"] < 60

    assert osp(*again[1:], "--devices", "2").returncode == 0
    assert osp(*settings, "--out", str(whole), "--devices", "2").returncode == 0
    one, two = weights(whole), weights(folder)
    assert one.keys() == two.keys()
    assert all(torch.equal(two[name], wanted) for name, wanted in one.items())
    lines = [[(line["step"], line["kind"]) for line in RunFolder(each).read_metrics()] for each in (whole, folder)]
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_two_devices_train_test_and_draw_once_and_a_fault_in_one_is_told(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    done = osp(*SETTINGS, "--method", str(mine), "--out", str(tmp_path / "run"), "--devices", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    for name in ("result.json", "result.png", "model.safetensors", "predictions.npz"):
        assert (tmp_path / "run" / name).exists()
    again = osp("--out", str(tmp_path / "run"), "--method", str(mine), "--resume", "--devices", "2")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("is finished") == 1
    taken = osp(*SETTINGS, "--method", str(mine), "--out", str(tmp_path / "run"), "--devices", "2")
    assert taken.returncode == 2
    assert taken.stderr.count("is not empty") == 1
    broken = osp(*SETTINGS, "--method", str(mine), "--out", str(tmp_path / "b"), "--devices", "2", DIES="broken")
    assert broken.returncode == 2
    assert "ZeroDivisionError: a fault in the method" in broken.stderr
    assert "Rank 1 of the run ended with exit code 1" in broken.stderr
    uneven = osp(
        *SETTINGS, "--set", "batch=7", "--method", "supervised", "--out", str(tmp_path / "c"), "--devices", "2"
    )
    assert uneven.returncode == 2
    assert uneven.stderr.count("7 labeled images per step cannot be shared by 2 processes; set a multiple of 2.") == 1


def images(folder: Path, value: int) -> None:
    """Two classes of grey images; another value, other pixels."""
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            grey = 5 * number + (100 + value if name == "dog" else 0)
            Image.new("L", (8, 8), grey).save(folder / name / f"{number}.png")


def see_other_images(folder: Path) -> None:
    os.chdir(folder / str(distributed.rank()))
    os.environ["OSP_CACHE"] = str(folder / f"cache{distributed.rank()}")
    recipe = Recipe(data="folder", data_dir="/proc/self/cwd", method="supervised", scale="demo", steps=2, threads=1)
    with pytest.raises(distributed.Everywhere, match="Rank 1 has other images than rank 0"):
        train(recipe, folder / "run")
    assert not (folder / "run" / "plan.yaml").exists()


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="one path with two contents: only Linux has it")
def test_ranks_that_see_other_images_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        images(tmp_path / str(number), number)
    wait_for(in_two(see_other_images, tmp_path))


def test_the_reason_is_the_rank_that_did_not_merely_lose_the_others() -> None:
    def ended(exitcode: int, timestamp: int) -> SimpleNamespace:
        return SimpleNamespace(exitcode=exitcode, timestamp=timestamp)

    with pytest.raises(UserError, match=r"Rank 2 of the run was ended by SIGKILL \(out of memory\?\).*with: go$"):
        _why({0: ended(LOST, 1), 2: ended(-9, 2)}, "go")
    with pytest.raises(UserError, match="Rank 0 of the run lost the others"):
        _why({0: ended(LOST, 1)}, "go")
    with pytest.raises(UserError, match="Rank 1 of the run ended with exit code 1"):
        _why({0: ended(LOST, 1), 1: ended(1, 1)}, "go")
    assert _why({0: ended(2, 1)}, "go") == 2  # it has said why


def test_several_machines_must_know_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="Set MASTER_ADDR to the address of one of them"):
        endpoint()
    monkeypatch.setenv("SLURM_NODELIST", "node[7-9]")
    assert endpoint() == "node7:29500"
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert endpoint() == "10.0.0.1:1234"


@pytest.mark.slow
def test_machines_that_do_not_meet_are_told_in_time(tmp_path: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OSP_TIMEOUT": "3"}
    alone = osp(*SETTINGS, "--out", str(tmp_path / "run"), "--devices", "1", "--nodes", "2", **place)
    assert alone.returncode == 2
    assert f"did not meet at 127.0.0.1:{place['MASTER_PORT']} within 3 seconds" in alone.stderr
    assert len(alone.stderr.splitlines()) == 1  # neither a traceback nor the launcher's own words
    assert not (tmp_path / "run").exists()


def test_devices_that_processes_cannot_share_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="device: cuda:1 is one device; for 2 processes use cuda, cpu or auto"):
        check_several("cuda:1", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"3 processes were started here, but this machine has 1 CUDA device\. Start 1"):
        check_several("auto", 3)
    check_several("cpu", 3)


@pytest.mark.slow
def test_no_process_of_a_run_imports_a_module_of_the_working_folder(tmp_path: Path) -> None:
    (folder := tmp_path / "work").mkdir()
    ran = trap(folder)
    done = strangers.osp(folder, "train", *SETTINGS, "--method", "supervised", "--out", "run", "--devices", "2")
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


def test_a_rank_ends_with_its_code_after_all_others_are_done_and_without_taking_the_interpreter_down() -> None:
    text = """
        import atexit, sys, osp.cli

        class Late:
            def __del__(self):
                print("the interpreter went down")

        sys.modules["late"] = Late()

        def run():
            atexit.register(print, "closed")
            return CODE

        osp.cli._run = run
        osp.cli.main()
    """

    def ended(code: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text).replace("CODE", code)],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        return done.returncode, done.stdout

    assert ended("3") == (3, "closed\nthe interpreter went down\n")
    assert ended("3", RANK="0") == (3, "closed\n")
    assert ended("0", RANK="1") == (0, "closed\n")
    assert ended("1 / 0", RANK="1") == (1, "closed\n")
