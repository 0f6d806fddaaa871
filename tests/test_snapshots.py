"""What users see stays as it is, whatever is rebuilt behind it: help texts, stored tables, pages, exported answers.

Everything goes through the command. After a change that is meant,

    RENEW_SNAPSHOTS=1 python -m pytest tests/test_snapshots.py

writes the files in tests/snapshots anew; look at their difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image

from osp import cli

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).with_name("snapshots")
RENEW = bool(os.environ.get("RENEW_SNAPSHOTS"))
QUICK = 4
"""Stored tables that `make test` compares; `make test-slow` compares the others."""


@pytest.fixture(autouse=True)
def _stable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same width and the same relative paths everywhere."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(ROOT)


def command(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints, in this process, without colors."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["osp", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert not ended.value.code, shown.err
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    return "\n".join(line.rstrip() for line in plain.splitlines()).strip("\n") + "\n"


def compare(file: str, section: str, text: str) -> None:
    """With the section of this name in a file of snapshots; or put it there."""
    sections = sections_of(file)
    if RENEW:
        sections[section] = text
        (KEPT / file).write_text("\n".join(f"$ {name}\n{shown}" for name, shown in sections.items()), "utf-8")
    assert section in sections, f"There is no snapshot of it; {__doc__}"
    assert text == sections[section]


def sections_of(file: str) -> dict[str, str]:
    if not (KEPT / file).exists():
        return {}
    parts = re.split(r"^\$ (.*)\n", (KEPT / file).read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {name: f"{text.rstrip()}\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


# Help


def paths_of(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name, each in getattr(group, "commands", {}).items():
        yield from paths_of(each, (*before, name))


@pytest.mark.parametrize("path", list(paths_of(typer.main.get_command(cli.app))), ids=" ".join)
def test_help(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its words: boxes and blanks are the terminal library's."""
    shown = command([*path, "--help"], monkeypatch, capsys)
    lines = [re.sub(r"\s+", " ", line.strip("│╭╮╰╯─ ")).replace("─", "") for line in shown.splitlines()]
    compare("help.txt", " ".join(("osp", *path, "--help")), "".join(f"{line}\n" for line in lines if line))


def test_no_help_is_kept_of_a_command_that_is_gone() -> None:
    here = {" ".join(("osp", *path, "--help")) for path in paths_of(typer.main.get_command(cli.app))}
    assert set(sections_of("help.txt")) == here


# Tables


def stored_tables() -> list[str]:
    """Every command of the lab notes that shows stored runs."""
    text = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("lab-notes.md", "first-version.md"))
    found = (" ".join(each.split()) for each in re.findall(r"`(osp bench [^`]*)`", text))
    return list(dict.fromkeys(each for each in found if "--no-run" in each))


TABLES = [
    pytest.param(each, marks=[pytest.mark.slow] if number >= QUICK else [], id=each.removeprefix("osp bench "))
    for number, each in enumerate(stored_tables())
]


@pytest.mark.parametrize("asked", TABLES)
def test_stored_table(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = command([*shlex.split(asked)[1:], "--out", str(tmp_path)], monkeypatch, capsys)
    compare("tables.txt", asked, shown.replace(str(tmp_path), "runs/bench"))


# Pages and exported answers


class Outline(HTMLParser):
    """The words of a page in their order, each line once, `#` for numbers.

    Captions of images are left out: which image comes first depends on rounding.
    """

    SKIPPED = ("style", "script", "figcaption", "svg", "pre", "title")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.SKIPPED:
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            self.inside.remove(tag)

    def handle_data(self, data: str) -> None:
        words = re.sub(r"\d+([.,]\d+)*(\+cpu)?", "#", " ".join(data.split()))
        if not self.inside and words.strip("#°% "):
            self.found.append(words)

    def text(self) -> str:
        return "".join(f"{line}\n" for line in dict.fromkeys(self.found))


def close(file: str, answers: dict[str, Any]) -> None:
    """Compare numbers with those of a file: another processor rounds otherwise."""
    if RENEW:
        (KEPT / file).write_text(json.dumps(answers, indent=1) + "\n", "utf-8")
    kept = json.loads((KEPT / file).read_text("utf-8"))
    assert answers.keys() == kept.keys()
    for key, value in kept.items():
        np.testing.assert_allclose(answers[key], value, rtol=0.02, atol=0.02, err_msg=key)


def exported(path: Path, images: np.ndarray) -> dict[str, Any]:
    """What the exported model says of images."""
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    given = {session.get_inputs()[0].name: images}
    return {
        name: np.asarray(value).round(4).tolist() for name, value in zip(names, session.run(None, given), strict=True)
    }


@pytest.mark.slow
def test_page_and_exported_answers_of_a_trained_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    run = str(tmp_path / "run")
    short = ["--steps", "12", "--set", "batch=16", "--set", "device=cpu"]
    command(["train", "--method", "osp", "--scale", "demo", *short, "--out", run], monkeypatch, capsys)
    command(["report", run], monkeypatch, capsys)
    page = Outline((tmp_path / "run" / "report.html").read_text("utf-8")).text()
    compare("pages.txt", "osp report of a trained run", page)
    # a score that asks the pool has clusters of its own after so few steps; softmax follows from the probabilities
    command(["export", run, "--onnx", str(tmp_path / "model.onnx"), "--score", "softmax"], monkeypatch, capsys)
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
    close("answers-train.json", exported(tmp_path / "model.onnx", images))


@pytest.mark.slow
def test_page_and_exported_answers_of_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    colors = {"red": (200, 40, 40), "blue": (40, 40, 200), "green": (40, 200, 40)}
    for number, (color, middle) in enumerate(colors.items()):
        for seed in range(12):
            place = "pile" if seed >= 5 or color == "green" else f"sorted/{color}"
            drawn(tmp_path / place / f"{color} {seed}.png", middle, 100 * number + seed)
    folders = [str(tmp_path / "sorted"), str(tmp_path / "pile")]
    command(["fit", *folders, "--out", str(tmp_path / "run")], monkeypatch, capsys)
    command(["report", str(tmp_path / "run")], monkeypatch, capsys)
    page = Outline((tmp_path / "run" / "report.html").read_text("utf-8")).text()
    compare("pages.txt", "osp report of a fit", page.replace(str(tmp_path), "TMP"))
    command(["export", str(tmp_path / "run"), "--onnx", str(tmp_path / "model.onnx")], monkeypatch, capsys)
    images = np.stack([np.full((224, 224, 3), shade, np.uint8) for shade in (30, 120, 220)])
    images[..., 0] = 200
    close("answers-fit.json", exported(tmp_path / "model.onnx", images))


def drawn(path: Path, middle: tuple[int, int, int], seed: int) -> None:
    """A photo of one color with a coarse pattern of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).normal(size=(5, 6, 3)).repeat(16, 0).repeat(16, 1) * 30
    Image.fromarray(np.clip(np.array(middle) + coarse, 0, 255).astype(np.uint8)).save(path)
