"""Checkpoints: whole or not at all, refused with a sentence, nothing ever unpickled."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_runs import TiedNet, small
from torch import nn

from helpers.runs import run
from osp import UserError
from osp.files import write_bytes
from osp.runs.checkpoint import load_checkpoint, load_state, prefixed, save_checkpoint, unprefixed
from osp.runs.folder import RunFolder


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    tensors = {name: torch.arange(6.0).reshape(2, 3) for name in "abcdefgh"}
    contents = set()
    for _ in range(8):
        save_checkpoint(tmp_path / "x.safetensors", tensors, {"done": 1, "word": "\u00e4"})
        contents.add((tmp_path / "x.safetensors").read_bytes())
    assert len(contents) == 1
    assert load_checkpoint(tmp_path / "x.safetensors")[1] == {"done": 1, "word": "\u00e4"}


def test_tensors_and_header_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {
        "a/weights": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "a/half": torch.randn(3).bfloat16(),
        "b/flags": torch.tensor([True, False]),
        "b/count": torch.tensor(7),
        "b/none": torch.zeros(0, 5),
        "b/turned": torch.arange(6.0).view(2, 3).T,
    }
    meta = {"done": 3, "names": ["ä", "b"], "share": 0.1}
    save_checkpoint(tmp_path / "x.safetensors", tensors, meta)
    loaded, found = load_checkpoint(tmp_path / "x.safetensors")
    assert found == meta
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert os.listdir(tmp_path) == ["x.safetensors"]
    assert unprefixed("a", prefixed("a", {"x": tensors["b/count"]})) == {"x": tensors["b/count"]}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_write_keeps_the_earlier_file_and_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.safetensors"
    write_bytes(path, b"good")

    def failing(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UserError) as refused:
        write_bytes(path, b"newer")
    assert os.strerror(number) in str(refused.value)
    assert "The earlier last.safetensors is untouched." in str(refused.value)
    assert ("Free some space" in str(refused.value)) == (number != errno.EIO)
    assert path.read_bytes() == b"good"
    assert os.listdir(tmp_path) == ["last.safetensors"]


def test_damaged_and_foreign_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    good = tmp_path / "good.safetensors"
    save_checkpoint(good, {"a": torch.ones(100)}, {"done": 1})
    content = good.read_bytes()
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.ones(2)}, foreign)
    cases: dict[str, bytes] = {
        "truncated": content[:-10],
        "header only": content[:20],
        "empty": b"",
        "text": b"hello, this is no checkpoint at all",
        "huge header": b"\xff" * 8 + content[8:],
    }
    for name, damaged in cases.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged"):
            load_checkpoint(tmp_path / name)
    with pytest.raises(UserError, match="is not a checkpoint of osp"):
        load_checkpoint(foreign)
    with pytest.raises(UserError, match="There is no checkpoint"):
        load_checkpoint(tmp_path / "nowhere.safetensors")
    with pytest.raises(UserError, match=r"is damaged|no checkpoint"):
        load_checkpoint(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
def test_a_pipe_or_a_link_in_the_place_of_a_checkpoint_is_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    good, link = tmp_path / "good.safetensors", tmp_path / "link.safetensors"
    save_checkpoint(good, {"a": torch.ones(2)}, {"done": 1})
    link.symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is damaged: it is a link"):
        load_checkpoint(link)
    for links in (False, True):
        with pytest.raises(UserError, match="is damaged: it is no file"):
            load_checkpoint(tmp_path / "pipe", links=links)
    assert load_checkpoint(link, links=True)[1] == {"done": 1}  # as the user has named it


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil-was-here",)


def test_a_pickle_in_the_place_of_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "last.safetensors"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError):
        load_checkpoint(path)
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(UserError):
        load_checkpoint(path)
    assert not (tmp_path / "evil-was-here").exists()


def test_a_finished_run_leaves_these_files_and_no_others(tmp_path: Path) -> None:
    folder = RunFolder(run(small("fixmatch"), tmp_path / "run").path)
    for path in (folder.model, folder.best):
        assert {name.split("/")[0] for name in load_checkpoint(path)[0]} <= {"encoder", "classifier", "scores"}
    assert sorted(os.listdir(folder.path)) == [
        ".lock",
        "checkpoints",
        "data.json",
        "metrics.jsonl",
        "model.safetensors",
        "plan.yaml",
        "predictions.npz",
        "recipe.yaml",
        "result.json",
        "split.npz",
    ]
    assert sorted(os.listdir(folder.checkpoints)) == ["best.safetensors", "last.safetensors"]


def test_state_of_another_shape_or_name_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    state = module.state_dict()
    with pytest.raises(UserError, match=r"'weight' is \(2, 5\), the network wants \(2, 3\)"):
        load_state(module, {**state, "weight": torch.zeros(2, 5)}, tmp_path)
    with pytest.raises(UserError, match="lacks 'bias'"):
        load_state(module, {"weight": state["weight"]}, tmp_path)
    with pytest.raises(UserError, match="holds 'more', which"):
        load_state(module, {**state, "more": torch.zeros(1)}, tmp_path)


def test_buffers_take_the_size_they_were_saved_with(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Identity())
    module[0].register_buffer("bank", torch.zeros(0, 4))
    load_state(module, {"0.bank": torch.ones(3, 4)}, tmp_path)
    assert torch.equal(module.state_dict()["0.bank"], torch.ones(3, 4))


def test_tied_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    module, other = TiedNet(), TiedNet()
    save_checkpoint(tmp_path / "x", module.state_dict(), {})
    load_state(other, load_checkpoint(tmp_path / "x")[0], tmp_path / "x")
    assert torch.equal(other.first.weight, module.first.weight)
    assert other.second.weight is other.first.weight


FULL_DISK = """
import resource, sys
import osp.engine.state
import osp.engine.state
from osp.cli import main
from osp.runs.checkpoint import save_checkpoint

osp.engine.state.CHECKPOINT_SECONDS = -1.0
saves = 0

def limited(path, *arguments, **more):
    global saves
    saves += path.name.startswith("last")
    if saves == 4:  # from now on no file may be longer than 4 kB, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    save_checkpoint(path, *arguments, **more)

osp.engine.state.save_checkpoint = limited
sys.argv = ["osp", "train", *sys.argv[1:]]
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of this kind are not known there")
def test_a_full_disk_ends_the_run_with_a_sentence_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    recipe = small("fixmatch", eval_every=100)
    (tmp_path / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        FULL_DISK,
        "--recipe",
        str(tmp_path / "recipe.yaml"),
        "--out",
        str(tmp_path / "run"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "The earlier last.safetensors is untouched. Free some space" in ended.stderr
    assert "a training goes on with --resume" in ended.stderr
    folder = RunFolder(tmp_path / "run")
    assert load_checkpoint(folder.last)[1]["done"] == 3
    assert not [name for name in os.listdir(folder.checkpoints) if "partial" in name]
    resumed = run(recipe, tmp_path / "run", resume=True)
    whole = run(recipe, tmp_path / "whole")
    assert {**resumed.result, "seconds": 0} == {**whole.result, "seconds": 0}


def test_a_damaged_result_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = run(small(), tmp_path / "run").path
    (path / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="Delete it and go on with --resume"):
        run(small(), path, resume=True)


def test_a_line_cut_off_by_a_crash_is_left_out_of_the_log(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step, "loss": 0.5})
    with open(folder.metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3]
    folder.rewind_metrics(2)
    assert [json.loads(line)["step"] for line in folder.metrics.read_text(encoding="utf-8").splitlines()] == [1, 2]


def test_an_out_folder_that_is_a_file_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="is a file; name a folder"):
        run(small(), tmp_path / "file")
    with pytest.raises(UserError, match="file is a file; name a folder"):
        run(small(), tmp_path / "file" / "run")
