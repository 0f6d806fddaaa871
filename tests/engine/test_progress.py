"""What a run shows: the bar's numbers never give way to the loss terms."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from osp.engine.progress import Display, Live, Plain, Speed, display_for_terminal, dot_of, shown

TERMS = {f"a_long_name_of_a_term_{number}": 0.123456 for number in range(12)}
WIDTHS = [60, 80, 120, 200]


def screen(live: Live, width: int) -> list[str]:
    """The lines as they stand in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(live)
    return captured.get().rstrip("\n").split("\n")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    """A run at step 1,234 of 250,000 in its second stage, 100 steps per second, much to tell."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    live = Live(Console(file=io.StringIO(), force_terminal=True))
    live.begin(250_000, 0)
    live.values(100, "pretrain", {"loss": 9.0, "stale": 1.0})
    live.values(200, "pretrain", {"val_accuracy": 87.25, "pool_auroc": 70.0})
    clock[0] = 12.34
    live.values(1234, "finetune", {**TERMS, "loss": 2.5})
    live.end()
    return live


@pytest.mark.parametrize("width", WIDTHS)
def test_bar_steps_time_left_and_validation_accuracy_fit_at_every_width(live: Live, width: int) -> None:
    bar, terms = screen(live, width)
    assert re.fullmatch(r"finetune [━─]{6,40} 1,234/250,000 · 41:28 left · val 87.2 %", bar.rstrip())  # 248,766 / 100 s
    assert max(cell_len(bar), cell_len(terms)) < width
    assert terms.startswith("loss 2.5 · a_long_name")
    assert terms.endswith("…") or "term_11" in terms
    assert "stale" not in terms


def test_terms_of_an_earlier_stage_go_with_its_first_step_and_accuracy_stays(live: Live) -> None:
    live.step(1235, "third")
    bar, terms = screen(live, 120)
    assert bar.startswith("third ")
    assert "val 87.2 %" in bar
    assert terms == "pool_auroc 70"


def test_long_and_wide_names_of_stages_give_way_to_the_numbers(live: Live) -> None:
    live.step(1235, "微调" * 40)
    bar = screen(live, 60)[0]
    assert cell_len(bar) < 60
    assert "1,235/250,000" in bar
    assert "left · val 87.2 %" in bar


def test_a_narrow_terminal_breaks_nothing(live: Live) -> None:
    for width in (8, 20, 40):
        assert max(map(cell_len, screen(live, width))) <= width


def test_names_are_neither_markup_nor_controls(live: Live) -> None:
    live.values(1236, "[/x]\x1b[31m", {"loss": 1.0, "[bold]\x1b[2J": 2.0})
    bar, terms = screen(live, 120)
    assert bar.startswith("[/x]\\x1b[31m ")
    assert "[bold]\\x1b[2J 2" in terms
    file = io.StringIO()
    told = Live(Console(file=file, force_terminal=True, color_system=None, width=200))
    told.say("a warning that holds [/x] and \x1b[31m")
    assert file.getvalue() == "a warning that holds [/x] and \\x1b[31m\n"


def test_the_time_left_follows_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    speed = Speed(total=10_000, done=0)
    assert speed.left() is None
    for second in range(1, 1001):  # a step per second, and then ten
        clock[0] = float(second)
        speed.step(second if second <= 500 else 500 + 10 * (second - 500), "train")
        if second == 500:
            assert speed.left() == pytest.approx(9500, rel=0.01)
    assert speed.left() == pytest.approx((10_000 - 5_500) / 10, rel=0.01)


@pytest.mark.parametrize("display", [Plain(), Live(Console(file=io.StringIO()))])
def test_the_time_left_is_by_the_pace_of_the_present_stage(
    monkeypatch: pytest.MonkeyPatch, display: Plain | Live
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    display.begin(1000, 0)
    for done in range(1, 101):  # ten seconds
        clock[0] += 0.1
        display.step(done, "pretrain")
    assert display._speed.left() == pytest.approx(90)
    clock[0] += 5  # the pool is cut, and the first slow step
    display.step(101, "finetune")
    assert display._speed.left() == pytest.approx(899 * 15 / 101)  # nothing is known of this stage yet
    for done in range(102, 105):
        clock[0] += 2.0
        display.step(done, "finetune")
    assert display._speed.left() == pytest.approx(2 * 896)
    display.end()


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = display_for_terminal()
    assert isinstance(display, Plain)
    display.begin(10, 0)
    display.values(5, "train", {"val_accuracy": 50.0})
    display.say("[/x] \x1b[31m")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("train 5/10")
    assert first.endswith("val_accuracy 50")
    assert second == "[/x] \\x1b[31m"


def test_loading_is_shown_only_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with shown() as display:
        display.loading(1, 100, "Decoding [/x]")
        clock[0] = 2.5
        display.loading(2, 100, "Decoding [/x]")
        display.loading(3, 100, "Decoding [/x]")
        assert capsys.readouterr().err == f"Decoding [/x]: 2/100{dot_of(sys.stderr.encoding)}4:05 left\n"
        display.loading(100, 100, "Decoding [/x]")
        display.loading(100, 100, "Decoding [/x]")
        display.loading(9, 9, "Sorting")
    assert capsys.readouterr().err == "Decoding [/x]: 100/100\n"


def test_plain_lines_say_how_long_loading_still_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage at its own pace: reading is quick and says nothing about the features that come after it."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    display = Plain()
    for second, done, text in (
        (0.0, 100, "Reading files"),
        (3.0, 700, "Reading files"),
        (15.0, 32, "Features"),
        (25.5, 137, "Features"),
        (36.0, 1000, "Features"),
    ):
        clock[0] = second
        display.loading(done, 1000, text)
    said = capsys.readouterr().err.replace(dot_of(sys.stderr.encoding), ", ")
    assert said.splitlines() == [
        "Reading files: 700/1,000, 2 s left",
        "Features: 32/1,000",
        "Features: 137/1,000, 1:26 left",
        "Features: 1,000/1,000",
    ]


def test_nothing_is_shown_where_nobody_wants_it(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(progress=False) as display:
        assert type(display) is Display
        display.loading(1, 2, "x")
        display.say("x")
    assert capsys.readouterr() == ("", "")


def in_terminal(command: list[str], columns: int, cwd: Path) -> str:
    """What a command writes to a terminal of this width."""
    import fcntl
    import pty
    import termios

    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=cwd, env=environment | {"TERM": "xterm-256color"}
    )
    os.close(terminal)
    written = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(main)
    assert process.wait(timeout=60) == 0, written.decode()
    return written.decode()


DRAWN = """
import time
from osp.engine.progress import shown
with shown() as display:
    display.begin(3000, 0)
    for stage, done in (("pretrain", 1000), ("finetune", 2000)):
        terms = {f"{stage}_term_{number}": 0.123456 for number in range(15)}
        display.values(done, stage, {"loss": 1.5, **terms})
        display.values(done, stage, {"val_accuracy": 66.66})
        display.say("note [/x] " + chr(27) + "[31m")
        time.sleep(0.6)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("width", WIDTHS)
def test_in_a_real_terminal_each_frame_has_its_numbers_and_no_line_wraps(width: int, tmp_path: Path) -> None:
    written = in_terminal([sys.executable, "-c", DRAWN], width, tmp_path)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written))
    assert max(map(cell_len, lines)) < width
    frames = [(line, lines[number + 1]) for number, line in enumerate(lines) if line.startswith("finetune ")]
    assert frames
    for bar, terms in frames:
        assert re.search(r"2,000/3,000 · .+ left · val 66\.7 %$", bar.rstrip())
        assert "pretrain" not in terms
    assert "note [/x] \\x1b[31m" in written


def test_only_the_wanted_numbers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    display.only = ("val_accuracy",)
    display.begin(10, 0)
    display.values(1, "train", {"loss": 1.0})
    display.values(5, "train", {"val_accuracy": 90.0, "angle": 60.0})
    said = capsys.readouterr().err
    assert "val_accuracy 90" in said
    assert "loss" not in said
    assert "angle" not in said
