"""The command as users run it: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import osp
from osp.methods import get

RESULT_FIELDS = {
    *("method", "dataset", "data_variant", "ood_ratio", "labels_per_class", "preset", "scale", "seed", "steps"),
    *("images_seen", "seconds", "accuracy", "auroc", "msp_auroc", "pool_auroc", "aupr_id", "aupr_ood", "fpr95"),
    *("purity", "recall", "angle", "interclass_variance", "warnings"),
}

README = Path(__file__).parents[1] / "README.md"


def environment(folder: Path) -> dict[str, str]:
    """Without the user's data, with a cache in `folder`, and wide enough that tables do not break words."""
    kept = {key: value for key, value in os.environ.items() if key not in ("OSP_DATA", "OSP_MIRROR")}
    return kept | {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home"), "COLUMNS": "200"}


def run(
    folder: Path, *arguments: str, code: int = 0, columns: int = 200, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osp", *arguments]
    within = environment(folder) | {"COLUMNS": str(columns)} | variables
    done = subprocess.run(command, cwd=folder, env=within, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def result_of(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text("utf-8"))
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("command", [(), ("demo",), ("train",), ("datasets",), ("methods",)])
def test_help_shows_an_example(tmp_path: Path, command: tuple[str, ...]) -> None:
    shown = run(tmp_path, *command, "--help").stdout
    assert "Example" in shown
    assert f"osp {' '.join(command)}".strip() in shown


def test_osp_alone_shows_the_help_and_the_installed_command_is_the_same(tmp_path: Path) -> None:
    alone, asked = run(tmp_path).stdout, run(tmp_path, "--help").stdout
    assert alone.split() == asked.split()
    script = Path(sys.executable).with_name("osp")
    if not script.exists():
        pytest.skip("the command `osp` is not installed beside this Python")
    installed = subprocess.run(
        [script, "--help"], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert installed.stdout == asked


def test_version(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout.strip() == f"osp {osp.__version__}"


def test_methods_lists_every_method_with_what_it_does(tmp_path: Path) -> None:
    listed = run(tmp_path, "methods").stdout
    for name in osp.methods.available():
        assert name in listed
        assert osp.methods.get(name).summary in listed


def test_the_paper_preset_of_a_method_says_where_each_value_comes_from(tmp_path: Path) -> None:
    lines = run(tmp_path, "methods", "fixmatch", "--preset", "paper").stdout.splitlines()
    (mu,) = [line for line in lines if line.split()[:1] == ["mu"]]
    assert "7" in mu.split()
    assert "FixMatch paper" in mu
    (default,) = [
        line for line in run(tmp_path, "methods", "fixmatch").stdout.splitlines() if line[:6].split() == ["mu"]
    ]
    assert "5" in default.split()


def test_no_name_of_an_option_is_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    shown = run(tmp_path, "methods", "osp", "--preset", "paper", columns=80).stdout.split()
    assert set(get("osp").Options.model_fields) <= set(shown)


def test_datasets_without_any_data_names_each_set_and_asks_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        shown = run(tmp_path, "datasets", OSP_MIRROR=f"http://127.0.0.1:{server.getsockname()[1]}").stdout
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()
    for name in osp.data.available():
        assert name in shown
    assert "cifar-100-python.tar.gz" in shown  # how to get what is not there
    assert not (tmp_path / "cache").exists()  # looking creates nothing


def test_datasets_finds_what_lies_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, images in (("train.bin", 3), ("test.bin", 2)):
        (folder / name).write_bytes(np.zeros((images, 2 + 3072), np.uint8).tobytes())
    (folder / "VARIANT.txt").write_text("five black images\n")
    (line,) = [
        line for line in run(tmp_path, "datasets", "--data-dir", "data").stdout.splitlines() if "cifar100" in line
    ]
    assert "yes" in line
    assert "five black images" in line
    assert "3 + 2 test" in line


def test_train_leaves_a_whole_run_folder_and_ends_by_saying_where(tmp_path: Path) -> None:
    options = ["--method", "fixmatch", "--steps", "6", "--ood-ratio", "0.3", "--labels-per-class", "7"]
    done = run(tmp_path, "train", *options, "--out", "first")
    assert "first" in done.stdout
    assert "test accuracy" in done.stdout
    out = tmp_path / "first"
    for name in ("recipe.yaml", "split.npz", "metrics.jsonl", "result.json", "result.png", "checkpoints"):
        assert (out / name).exists(), name
    result = result_of(out)
    assert result.keys() >= RESULT_FIELDS
    expected = {"method": "fixmatch", "dataset": "digits", "ood_ratio": 0.3, "labels_per_class": 7, "steps": 6}
    assert {key: result[key] for key in expected} == expected
    split = np.load(out / "split.npz")
    assert len(split["labeled"]) == 6 * 7
    assert np.isclose(split["unlabeled_is_ood"].mean(), 0.3, atol=0.02)
    assert osp.load(out).class_names == ("0", "1", "2", "3", "4", "5")


def test_the_recipe_of_a_run_starts_the_same_run_again(tmp_path: Path) -> None:
    run(tmp_path, "train", "--method", "supervised", "--steps", "5", "--set", "lr=0.02", "--out", "first")
    run(tmp_path, "train", "--recipe", "first/recipe.yaml", "--out", "second")
    run(tmp_path, "train", "--recipe", "first/recipe.yaml", "--seed", "1", "--out", "third")
    first, second, third = (result_of(tmp_path / name) for name in ("first", "second", "third"))
    assert "lr: 0.02" in (tmp_path / "second" / "recipe.yaml").read_text("utf-8")
    assert {**second, "seconds": 0} == {**first, "seconds": 0}
    assert third["seed"] == 1


def test_the_method_in_the_readme_runs_as_the_readme_says(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.py").write_text(code, "utf-8")
    (command,) = re.findall(r"^    osp (train --method \./mine\.py .*)$", text, re.MULTILINE)
    run(tmp_path, *command.split(), "--steps", "20", "--out", "run")
    result = result_of(tmp_path / "run")
    assert result["method"] == "mine"
    assert result["warnings"] == []  # its mechanism was active


def test_resume_of_a_finished_run_says_so_and_changed_options_are_named(tmp_path: Path) -> None:
    run(tmp_path, "train", "--method", "supervised", "--steps", "4", "--out", "run")
    before = (tmp_path / "run" / "result.json").read_bytes()
    assert "finished" in run(tmp_path, "train", "--resume", "--out", "run").stderr
    refused = run(tmp_path, "train", "--resume", "--out", "run", "--seed", "5", code=2)
    assert "seed is 0 there, 5 here" in refused.stderr
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def test_the_demo_trains_two_methods_and_leaves_earlier_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    kept = tmp_path / "runs" / "demo" / "mine.txt"
    kept.write_text("do not touch")
    done = run(tmp_path, "demo")
    assert [path.name for path in (tmp_path / "runs" / "demo").iterdir()] == ["mine.txt"]
    results = {path.parent.name: result_of(path.parent) for path in tmp_path.glob("runs/demo-2/*/result.json")}
    assert len(results) == 2
    for name, result in results.items():
        accuracy = result["accuracy"]
        assert isinstance(accuracy, float)
        assert accuracy > 70, name  # chance is 17
        assert f"{accuracy:.1f} %" in done.stdout
    gain = results["osp"]["auroc"] - results["supervised"]["auroc"]
    assert gain > 2  # the pool teaches something: by 10 to 15 points, seeds 0-2 under three roundings
    (picture,) = [word for word in done.stdout.split() if word.endswith("result.png")]
    assert (tmp_path / picture).stat().st_size > 10_000
