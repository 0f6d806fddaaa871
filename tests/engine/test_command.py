"""The real command, stopped by real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from small_runs import small

from helpers import commands
from helpers.runs import Stopper, run
from osp import Recipe, UserError, cli
from osp.engine.signals import Interrupted
from osp.runs.folder import RunFolder

ARGUMENTS = ["--method", "fixmatch", "--scale", "demo", "--set", "batch=8", "--set", "mu=1", "--set", "threads=1"]


def osp(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The command in this process, to save the seconds that importing torch takes; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["osp", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_ends_with_130_and_says_how_to_continue(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "osp", "train", *ARGUMENTS, "--steps", "100000", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--set", "log_every=1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = RunFolder(out)
    deadline = time.monotonic() + 120
    while not folder.metrics.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(UserError, match="Another process is training"):
        run(Recipe.read(folder.recipe), out, resume=True)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"Continue with: osp train --out {out} --resume" in said
    assert "Traceback" not in said
    assert folder.last.exists()

    text = folder.recipe.read_text(encoding="utf-8")
    assert osp(["train", "--out", str(out), "--resume", "--steps", "50"], monkeypatch) == 2
    assert "steps is 100000 there, 50 here" in capsys.readouterr().err
    assert folder.recipe.read_text(encoding="utf-8") == text


@pytest.mark.skipif(os.name != "posix", reason="links and signals of POSIX")
def test_ctrl_c_while_images_are_decoded_says_that_nothing_was_begun(tmp_path: Path) -> None:
    flat = Image.new("P", (2000, 2000))  # quick to write and slow to read; copies of one image would not be read at all
    for green, name in enumerate(("cat", "dog")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for red in range(200):
            flat.putpalette([red, green, 0])
            flat.save(folder / f"{red}.png", compress_level=1)
    command = [sys.executable, "-m", "osp", "train", "--data", "folder", "--data-dir", str(tmp_path / "photos")]
    for attempt in range(4):  # the signal may come when all images have been read
        cache = tmp_path / f"cache{attempt}"
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "run")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OSP_CACHE": str(cache)},
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )
        deadline = time.monotonic() + 60
        while not list(cache.glob("*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        if process.returncode == 130:
            break
    assert process.returncode == 130, said
    assert "Stopped at once. Nothing was begun." in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_the_command_resumes_what_was_stopped_and_a_finished_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = small("fixmatch"), tmp_path / "run"
    with pytest.raises(Interrupted):
        run(recipe, out, display=Stopper(4, signal.SIGTERM))
    assert osp(["train", "--out", str(out), "--resume"], monkeypatch) == 0
    assert "Going on at step 4 of 12." in capsys.readouterr().err
    assert (out / "result.png").exists()
    assert osp(["train", "--out", str(out), "--resume"], monkeypatch) == 0
    assert f"The run in {out} is finished." in capsys.readouterr().err
    assert osp(["train", "--out", str(out)], monkeypatch) == 2
    assert "is not empty" in capsys.readouterr().err
    assert osp(["train", "--out", str(tmp_path / "other"), "--resume"], monkeypatch) == 2
    assert "to resume (no plan.yaml)" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


MINE = """
import torch.nn.functional as F
from osp.methods import Method, StreamSpec

class Mine(Method):
    summary = "a method of my own"

    def streams(self, stage):
        return {"labeled": StreamSpec("labeled", self.options.batch, ("plain",))}

    def losses(self, batch, step):
        return {"ce": F.cross_entropy(self.net(batch["labeled"]["plain"]), batch["labeled"].targets)}
"""


def test_a_method_file_outside_the_package_runs_from_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    words = ["--method", "./mine.py", "--scale", "demo", "--steps", "10", "--set", "threads=1", "--out", "run"]
    ended = commands.osp(tmp_path, "train", *words)
    assert ended.returncode == 0, ended.stderr
    result = RunFolder(tmp_path / "run").read_result()
    assert result is not None
    assert (result["method"], result["steps"], result["images_seen"]) == ("mine", 10, 320)
