"""The command as users run it, in an empty folder; in a process of its own where that is the point."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import osp
from helpers import commands
from osp import cli
from osp.cli import train
from osp.methods import get
from osp.methods.base import Published

RESULT_FIELDS = {
    *("method", "dataset", "data_variant", "ood_ratio", "labels_per_class", "preset", "scale", "seed", "steps"),
    *("images_seen", "seconds", "accuracy", "auroc", "msp_auroc", "pool_auroc", "aupr_id", "aupr_ood", "fpr95"),
    *("purity", "recall", "angle", "interclass_variance", "warnings"),
}

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"


def environment(folder: Path) -> dict[str, str]:
    """Without the user's data, with a cache in `folder`, and wide enough that tables do not break words."""
    kept = {key: value for key, value in os.environ.items() if key not in ("OSP_DATA", "OSP_MIRROR")}
    return kept | {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home"), "COLUMNS": "200"}


def run(
    folder: Path, *arguments: str, code: int = 0, columns: int = 200, **variables: str
) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "osp", *arguments]
    given = environment(folder) | {"COLUMNS": str(columns)} | variables
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def here(
    folder: Path, *arguments: str, code: int = 0, columns: int = 200, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The same in this process."""
    taken_out = dict.fromkeys(os.environ.keys() - environment(folder).keys())
    done = commands.osp(folder, *arguments, **taken_out | environment(folder) | {"COLUMNS": str(columns)} | variables)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def result_of(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text("utf-8"))
    assert isinstance(result, dict)
    return result


def within(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The command in this process, to save the seconds that imports take; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["osp", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", [(), ("demo",), ("train",), ("datasets",), ("methods",), ("settings",)])
def test_help_shows_an_example(tmp_path: Path, command: tuple[str, ...]) -> None:
    shown = here(tmp_path, *command, "--help").stdout
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
    listed = here(tmp_path, "methods").stdout
    for name in osp.methods.available():
        assert name in listed
        assert osp.methods.get(name).summary in listed


def test_the_paper_preset_of_a_method_says_where_each_value_comes_from(tmp_path: Path) -> None:
    lines = here(tmp_path, "methods", "fixmatch", "--preset", "paper").stdout.splitlines()
    (mu,) = [line for line in lines if line.split()[:1] == ["mu"]]
    assert "7" in mu.split()
    assert "FixMatch paper" in mu
    (default,) = [
        line for line in here(tmp_path, "methods", "fixmatch").stdout.splitlines() if line[:6].split() == ["mu"]
    ]
    assert "5" in default.split()


def test_a_table_that_no_terminal_shows_is_not_squeezed_into_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # the tests' own may be a terminal
    assert within(["bench", "list"], monkeypatch) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) > 120


def test_the_paper_preset_shows_exceptions_and_what_holds_on_one_data_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = Published(5e-4, "a paper", by_data={"cifar100": 1e-3})
    monkeypatch.setattr(get("fixmatch"), "paper", {"weight_decay": published})
    monkeypatch.setattr(get("fixmatch"), "paper_data", ("mnist", "cifar10"))
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*arguments: str) -> str:
        assert within(["methods", "fixmatch", "--preset", "paper", *arguments], monkeypatch) == 0
        out = capsys.readouterr().out
        return out[: out.index("decay_all")]

    general = shown()
    assert "0.0005" in general
    assert "0.001 on cifar100" in general
    there = shown("--data", "cifar100").split()
    assert there[there.index("weight_decay") + 1] == "0.001"
    assert "The publication has no" not in shown("--data", "mnist")
    elsewhere = shown("--data", "digits")
    assert "0.0005" in elsewhere
    assert "The publication has no digits" in elsewhere
    assert within(["methods", "fixmatch", "--data", "minst"], monkeypatch) == 2
    assert "'mnist'" in capsys.readouterr().err
    for arguments, optimiser in (([], "sgd"), (["--data", "cifar100"], "muon"), (["--data", "mnist"], "sgd")):
        assert within(["methods", "fixmatch", *arguments], monkeypatch) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [line[1] for line in lines if line[:1] == ["optimizer"]] == [optimiser]


def test_settings_prints_every_field_and_option_with_a_default_and_a_meaning(tmp_path: Path) -> None:
    lines = here(tmp_path, "settings", "fixmatch").stdout.splitlines()
    first = {line.split()[0]: line.split() for line in lines if line.startswith(" ")}
    fields, options = osp.Recipe.model_fields, get("fixmatch").Options.model_fields
    assert {*fields, *options} <= first.keys()
    for name in {*fields, *options}:
        assert len(first[name]) >= 3, name
    assert first["lr"][1] == f"{options['lr'].default:g}"
    assert first["tensorboard"][1] == "false"
    assert "tensorboard --logdir" in " ".join(first["tensorboard"])
    assert first["device"][1] == "auto"
    assert "lr" not in [line.split()[0] for line in here(tmp_path, "settings").stdout.splitlines() if line[:1] == " "]


def test_dir_shows_what_the_package_offers_before_it_is_loaded() -> None:
    code = "import osp; print(set(osp.__all__) | {'data', 'methods', 'nets', 'parts'} <= set(dir(osp)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_no_name_of_an_option_is_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    shown = here(tmp_path, "methods", "osp", "--preset", "paper", columns=80).stdout.split()
    assert set(get("osp").Options.model_fields) <= set(shown)


def test_datasets_without_any_data_names_each_set_and_asks_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        shown = here(tmp_path, "datasets", OSP_MIRROR=f"http://127.0.0.1:{server.getsockname()[1]}").stdout
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
    shown = here(tmp_path, "datasets", "--data-dir", "data").stdout
    assert "\ncifar100      found    3 + 2 test images\n" in shown
    assert f"\n              {folder}\n" in shown
    assert "\n              variant: five black images\n" in shown


def test_datasets_breaks_no_path_and_does_not_claim_to_have_found_your_own_folder(tmp_path: Path) -> None:
    deep = tmp_path / "a_folder_with_a_long_name" / "and_another_one_with_a_long_name" / "and_a_third"
    deep.mkdir(parents=True)
    lines = here(tmp_path, "datasets", "--data-dir", str(deep), columns=60).stdout.splitlines()
    assert f"Looked in {deep}" in lines
    for name in ("folder", "pile"):
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert line.split() == [name, "yours"]


def test_train_leaves_a_whole_run_folder_and_ends_by_saying_where(tmp_path: Path) -> None:
    options = [
        "--method",
        "fixmatch",
        "--steps",
        "6",
        "--ood-ratio",
        "0.3",
        "--labels-per-class",
        "7",
        "--set",
        "threads=1",
    ]
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
    here(tmp_path, "train", "--method", "supervised", "--steps", "5", "--set", "lr=0.02", "--out", "first")
    here(tmp_path, "train", "--recipe", "first/recipe.yaml", "--out", "second")
    here(tmp_path, "train", "--recipe", "first/recipe.yaml", "--seed", "1", "--out", "third")
    first, second, third = (result_of(tmp_path / name) for name in ("first", "second", "third"))
    assert "lr: 0.02" in (tmp_path / "second" / "recipe.yaml").read_text("utf-8")
    assert {**second, "seconds": 0} == {**first, "seconds": 0}
    assert third["seed"] == 1


def test_the_method_in_the_docs_runs_as_they_say(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(r"```python\n(\"{3}mine\.py.*?)```", text, re.DOTALL)
    (tmp_path / "mine.py").write_text(code, "utf-8")
    (command,) = re.findall(r"^    osp (train --method \./mine\.py .*)$", text, re.MULTILINE)
    here(tmp_path, *command.split(), "--steps", "20", "--out", "run")
    result = result_of(tmp_path / "run")
    assert result["method"] == "mine"
    assert result["warnings"] == []  # its mechanism was active


def test_resume_of_a_finished_run_says_so_and_changed_options_are_named(tmp_path: Path) -> None:
    here(tmp_path, "train", "--method", "supervised", "--steps", "4", "--out", "run")
    before = (tmp_path / "run" / "result.json").read_bytes()
    assert "finished" in here(tmp_path, "train", "--resume", "--out", "run").stderr
    refused = here(tmp_path, "train", "--resume", "--out", "run", "--seed", "5", code=2)
    assert "seed is 0 there, 5 here" in refused.stderr
    assert (tmp_path / "run" / "result.json").read_bytes() == before


def the_demo(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of `osp demo` beside an earlier one, which it leaves alone."""
    (folder / "runs" / "demo").mkdir(parents=True)
    kept = folder / "runs" / "demo" / "mine.txt"
    kept.write_text("do not touch")
    done = here(folder, "demo")
    assert [path.name for path in (folder / "runs" / "demo").iterdir()] == ["mine.txt"]
    results = {path.parent.name: result_of(path.parent) for path in folder.glob("runs/demo-2/*/result.json")}
    assert len(results) == 2
    for result in results.values():
        assert f"{result['accuracy']:.1f} %" in done.stdout
    (picture,) = [word for word in done.stdout.split() if word.endswith("result.png")]
    assert (folder / picture).stat().st_size > 10_000
    return results


def test_the_demo_trains_two_methods_and_leaves_earlier_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train.run_shown
    monkeypatch.setattr(
        train, "run_shown", lambda recipe, out, resume, only: whole(recipe.changed(steps=6), out, resume, only)
    )
    assert [result["steps"] for result in the_demo(tmp_path).values()] == [6, 6]


@pytest.mark.slow
def test_the_demo_shows_that_the_pool_teaches(tmp_path: Path) -> None:
    results = the_demo(tmp_path)
    for name, result in results.items():
        accuracy = result["accuracy"]
        assert isinstance(accuracy, float)
        assert accuracy > 70, name  # chance is 17
    gain = results["osp"]["auroc"] - results["supervised"]["auroc"]
    assert gain > 2  # the pool teaches something: by 10 to 15 points, seeds 0-2 under three roundings


NASTY = "[/x]\x1b[31m\u202e"
SHOWN = "[/x]\\x1b[31m\\u202e"


def test_names_from_anywhere_are_neither_markup_nor_controls(tmp_path: Path) -> None:
    """Brackets and escape sequences in the names of a run folder, of classes and of a broken image."""
    inner = NASTY.replace("/", "")  # a slash would be one more folder
    for name in ("cat", "dog"):
        folder = tmp_path / f"photos{NASTY}" / f"{name}{inner}"
        folder.mkdir(parents=True)
        for number in range(20):
            pixels = np.random.default_rng([number, ord(name[0])]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
        (folder / f"broken{inner}.png").write_bytes(b"no image")
    options = [
        "--data",
        "folder",
        "--data-dir",
        f"photos{NASTY}",
        "--labels-per-class",
        "2",
        "--set",
        "val_per_class=2",
    ]
    options += ["--method", "supervised", "--steps", "2", "--out", f"fin{NASTY}"]
    done = here(tmp_path, "train", *options)
    assert f"Run: fin{SHOWN}" in done.stdout
    again = here(tmp_path, "train", "--out", f"fin{NASTY}", "--resume")
    assert f"fin{SHOWN} is finished" in again.stderr
    refused = here(
        tmp_path, "train", *options[:-1], "other", "--set", f"id_classes=['{NASTY}']".replace("\x1b", ""), code=2
    )
    for each in (done, again, refused):
        assert not {"\x1b", "\u202e"} & {*each.stdout, *each.stderr}
    result = result_of(tmp_path / f"fin{NASTY}")
    assert len(osp.load(tmp_path / f"fin{NASTY}").class_names) == 2
    assert result["dataset"] == "folder"


def test_warnings_and_variants_are_neither_markup_nor_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / NASTY / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(bytes(2 + 3072))
    (folder / "VARIANT.txt").write_text(f"seen {NASTY}", "utf-8")
    assert within(["datasets", "--data-dir", str(tmp_path / NASTY)], monkeypatch) == 0
    assert f"variant: seen {SHOWN}" in capsys.readouterr().out
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert within(["datasets", "--data-dir", "[/x]"], monkeypatch) == 0
    assert "[/x]" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit(f"odd {NASTY}", UserWarning, osp.__file__, 1)
    assert capsys.readouterr().err == f"osp: warning: odd {SHOWN}\n"
    train.print_result({"accuracy": 12.0, "warnings": [f"odd {NASTY}"]})
    assert f"Warning: odd {SHOWN}\n" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["--help", "--version", "datasets"])
def test_a_full_disk_behind_the_output_is_one_sentence(tmp_path: Path, command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "osp", command],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "osp: The output cannot be written: No space left on device.\n"


def test_a_reader_that_goes_away_is_no_error_message(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m osp settings | true"
    done = subprocess.run(command, shell=True, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    "command", [("--help",), ("datasets", "--data-dir", "é"), ("settings",), ("train", "--data", "é")]
)
def test_a_terminal_without_unicode_gets_an_answer(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "osp", *command],
        cwd=tmp_path,
        env=environment(tmp_path) | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    said = done.stdout.decode("ascii") + done.stderr.decode("ascii")
    assert "Traceback" not in said
    assert done.returncode == (2 if "train" in command else 0)
    assert "\\xe9" in said or "\xe9" not in "".join(command)


@pytest.mark.parametrize("variable", ["OSP_DATA", "OSP_CACHE"])
def test_a_variable_that_names_the_home_of_nobody_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "~nobody_of_that_name/data")
    assert within(["datasets"], monkeypatch) == 2
    assert capsys.readouterr().err.startswith(f"osp: {variable}: ")
