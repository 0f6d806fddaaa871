"""The harnesses of `make torture` in their short form: a few kills, damaged files and attacks of each kind."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osp import UserError
from osp.photos.labels import BOOK, Book, Label
from torture import attack, disk, labeling, load, numbers, slow, sorted_folders
from torture.fuzz import Subject, fuzz
from torture.kill import Work, at_calls, at_random, duration, reference, tracer, works
from torture.subjects import subjects
from torture.trial import trial

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and /proc")


def slow_first(*cases: Any) -> list[Any]:
    """The first is slow, the others wait for the night."""
    return [
        pytest.param(*case, marks=pytest.mark.nightly if number else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("name", slow_first(("sort",), ("undo",), ("store",), ("unpack",)))
def test_work_killed_at_system_calls_is_taken_up_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    strace = tracer()
    if strace is None:
        pytest.skip("strace is not there")
    (work,) = works([name])
    found = at_calls(work, tmp_path, strace, 3, random.Random(0))
    assert found.tried == 3
    assert not found.faults


def _act(folder: Path) -> None:
    time.sleep(0.3)
    (folder / "done").touch()


def _work(check: Callable[[Path, Path], None]) -> Work:
    return Work("nap", lambda folder: time.sleep(0.7), _act, _act, check)


def test_random_kills_are_drawn_from_the_time_of_the_work_and_not_of_its_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a preparation takes an hour: a busy machine needs less for the work."""
    clock = time.monotonic
    prepared: list[Path] = []
    monkeypatch.setattr("torture.kill.time.monotonic", lambda: clock() + 3600 * len(prepared))
    work = replace(_work(lambda folder, good: None), prepare=prepared.append)
    reference(work, tmp_path)  # that it is there already makes the work no shorter
    assert 0.3 <= duration(work, tmp_path) < 3600


def test_random_kills_land_and_what_is_lost_is_told(tmp_path: Path) -> None:
    def lost(folder: Path, good: Path) -> None:
        raise AssertionError("lost")

    found = at_random(_work(lost), tmp_path, 1, random.Random(0))
    assert found.killed == 1
    assert found.lost == found.tried
    assert "lost" in (tmp_path / "kills.txt").read_text()


@pytest.mark.parametrize(
    ("name", "kilobytes"), slow_first(("store", 8), ("sort", 4), ("store", 0), ("train supervised", 40))
)
def test_a_disk_that_was_full_costs_nothing_once_there_is_room(name: str, kilobytes: int, tmp_path: Path) -> None:
    if not disk.may_mount():
        pytest.skip("no mount namespaces here")
    (work,) = works([name])
    assert disk.full_disk(work, tmp_path, kilobytes) == ""


def test_a_full_disk_is_one(tmp_path: Path) -> None:
    if not disk.may_mount():
        pytest.skip("no mount namespaces here")

    def fill(folder: Path) -> None:
        (folder / "large").write_bytes(bytes(100_000))

    seen: list[str] = []

    def check(folder: Path, good: Path) -> None:
        assert (folder / "large").stat().st_size == 100_000
        raise AssertionError("filled twice" if (folder / "again").exists() else "filled once")

    def again(folder: Path) -> None:
        fill(folder)
        (folder / "again").touch()

    for kilobytes in (20, 500):
        work = Work(f"fill-{kilobytes}", lambda folder: None, fill, again, check)
        seen.append(disk.full_disk(work, tmp_path, kilobytes))
    assert "twice" in seen[0]
    assert "once" in seen[1]


@pytest.mark.slow
def test_disks_that_cannot_be_written_and_images_that_vanish_are_told(tmp_path: Path) -> None:
    if disk.may_mount():
        assert disk.read_only(tmp_path / "new", begun=False) == ""
    assert disk.vanished(tmp_path / "vanished") == ""
    assert disk.gone_on_the_way(tmp_path / "gone", 3) == ""


@pytest.mark.slow
def test_of_two_processes_on_one_folder_one_does_the_work(tmp_path: Path) -> None:
    assert disk.two_processes(tmp_path / "two") == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recipe", "images", "store", "grid file", "HTTP requests"])
def test_damaged_inputs_end_in_a_result_or_a_sentence(name: str, tmp_path: Path) -> None:
    (subject,) = (each for each in subjects() if each.name == name)
    found = fuzz(subject, tmp_path, 25, random.Random(1))
    assert found.tried == 25
    assert not found.faults


def test_the_fuzzer_tells_tracebacks_stray_files_and_crashes_within_a_batch(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        content = (folder / "x").read_bytes()
        if content == b"good":
            return
        if len(content) % 3 == 0:
            raise KeyError("a traceback")
        if len(content) % 3 == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "stray").touch()
        raise UserError("no")

    def make(folder: Path) -> None:
        (folder / "x").write_bytes(b"good")

    subject = Subject("toy", make, ("x",), read)
    found = fuzz(subject, tmp_path, 30, random.Random(0))
    changed = [fault for fault in found.faults if "traceback" in fault or "signal" in fault or "stray" in fault]
    assert len(changed) == len(found.faults) >= 20
    assert {word for word in ("a traceback", "signal 9", "stray") if any(word in fault for fault in changed)} == {
        "a traceback",
        "signal 9",
        "stray",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "situation"),
    [("osp", "oblong"), ("curriculum", "no pool"), ("dac", "constant")],
)
def test_odd_numbers_end_in_a_result_or_a_sentence(method: str, situation: str, tmp_path: Path) -> None:
    numbers.make(tmp_path, classes=4)
    assert numbers.odd(tmp_path, method, situation) == ""


@pytest.mark.nightly
def test_long_work_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert load.predict(tmp_path / "predict", 200) == ""
    assert load.training(tmp_path / "train", 40) == ""
    assert load.clients_of_serve(tmp_path / "serve", 4, 1.0) == ""
    said = capfd.readouterr().out
    assert "200 images" in said
    assert "40 steps" in said
    assert "0 lost" in said


def test_the_trial_tells_a_result_a_refusal_a_traceback_a_hang_and_gluttony() -> None:
    def refuse() -> None:
        raise UserError("no")

    def hang() -> None:
        while True:
            pass

    def eat() -> None:  # pages of its own: this process may hold freed memory that a child would use again
        held = mmap.mmap(-1, 200 << 20)
        held.write(b"x" * len(held))

    assert trial(lambda: 1).kind == "result"
    assert trial(refuse).kind == "refused"
    assert trial(lambda: [][1]).kind == "traceback"
    assert trial(hang, seconds=0.5).kind == "hang"
    assert trial(eat, megabytes=100).kind == "memory"


@pytest.mark.slow
def test_hostile_files_are_refused_without_a_trace(tmp_path: Path) -> None:
    own = ("fit, ", "names in report")  # in tests of their own
    tried = [(name, case) for name, case in attack.cases(tmp_path / "attack") if not name.startswith(own)]
    tried = [each for each in tried if not any(word in each[0] for word in (" where ", "stranger", "slow"))]  # likewise
    faults = {name: fault for name, case in tried if "image" not in name and (fault := case())}
    assert len(tried) > 25
    assert not faults


def test_links_and_journals_of_strangers_cost_a_sort_nothing(tmp_path: Path) -> None:
    tried = dict(sorted_folders.cases(tmp_path / "sorted"))
    faults = {name: fault for name, case in list(tried.items())[::9] if (fault := case())}
    assert len(tried) > 70
    assert not faults


@pytest.mark.parametrize(
    ("server", "manner"), slow_first(("label", "leaving"), ("serve", "unread"), ("serve", "in the body"))
)
def test_slow_clients_do_not_keep_others_waiting(server: str, manner: str, tmp_path: Path) -> None:
    tried = {name: case for name, case in slow.cases(tmp_path / "slow", 3.0) if server in name and manner in name}
    assert len(tried) == 1
    assert [case() for case in tried.values()] == [""]


@pytest.mark.slow
def test_answers_to_osp_label_outlive_kills(tmp_path: Path) -> None:
    found = labeling.killed(tmp_path / "label", 2, random.Random(0))
    assert found.killed == 2
    assert not found.faults


def test_an_answer_to_osp_label_that_is_lost_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    book = Book(tmp_path / "run" / BOOK)
    told = labeling.Told([{}, {"1.png": "red"}])
    assert "1.png" in labeling._lost(tmp_path, told)
    book.add([Label("pile/1.png", "red", "1" * 32)])
    assert labeling._lost(tmp_path, told) == ""
    book.add([Label("pile/2.png", "red", "2" * 32)])
    assert "2.png" in labeling._lost(tmp_path, told)
    told.under_way = {"1.png": "red", "2.png": "green"}
    assert "2.png" in labeling._lost(tmp_path, told)
    told.under_way = {"1.png": "red", "2.png": "red", "3.png": "red"}
    assert labeling._lost(tmp_path, told) == ""
    assert told.states[-1] == {"1.png": "red", "2.png": "red"}


@pytest.mark.slow
def test_the_long_form_runs_from_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torture", "--cases", "3", "--keep", str(tmp_path), "attack", "--help"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--kills" in done.stdout
