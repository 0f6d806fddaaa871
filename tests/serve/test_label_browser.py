"""`osp label` with real keys in a real browser: twenty answers, five taken back, a reload, a kill, and all is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.browser import Page, browser
from helpers.labeling import make_pile, start
from osp.photos.labels import BOOK, current, read_labels

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": "\r"} if key == "Enter" else {"text": key}
        page._devtools("Input.dispatchKeyEvent", {"type": kind, "key": key, **(text if kind == "keyDown" else {})})


def answers(page: Page) -> int:
    return int(page.run("return parseInt(document.getElementById('counts').textContent) || 0"))


def act(page: Page, key: str, then: int) -> None:
    """Press a key, and wait until the page counts so many answers."""
    page.until("return document.querySelectorAll('#grid .photo').length > 0")
    press(page, key)
    page.until(f"return parseInt(document.getElementById('counts').textContent) === {then}")


@pytest.mark.slow
def test_twenty_answers_five_taken_back_a_reload_and_a_kill_lose_nothing(tmp_path: Path) -> None:
    make_pile(tmp_path / "pile", 90)
    server = start(tmp_path)
    process = server.process
    try:
        with browser(tmp_path / "browser") as page:
            page.emulate(1300)
            page.visit(server.address)
            page.until("return document.querySelectorAll('#grid .photo').length > 1")
            for done, name in enumerate(("cat", "dog"), 1):  # N, a name, Enter
                press(page, "n")
                page.until("return document.activeElement.tagName === 'INPUT'")
                for letter in name:
                    press(page, letter)
                press(page, "Enter")
                page.until(f"return parseInt(document.getElementById('counts').textContent) === {done}")
            page.run("document.querySelector('#grid .photo').click()")  # one that does not belong
            assert page.run("return document.querySelectorAll('.photo.off').length") == 1
            for done, key in enumerate(["1", "2", "0", "1", "2", "0", "1", "2", "0"] * 2, 3):
                act(page, key, done)
            assert answers(page) == 20
            before = page.run("return document.querySelector('#grid .photo').dataset.number")
            press(page, "s")
            page.until(f"return document.querySelector('#grid .photo').dataset.number !== '{before}'")
            for left in range(19, 14, -1):
                act(page, "u", left)
            told = current(read_labels(tmp_path / "run" / BOOK))
            assert {label.name for label in told.values()} == {"cat", "dog", "none"}
            page.visit(server.address)
            page.until("return document.getElementById('counts').textContent.startsWith('15 answers')")
            process.kill()
            process.wait(30)
            page.until("return /server has stopped/.test(document.getElementById('problem').textContent)")
            server = start(tmp_path)
            process = server.process
            page.visit(server.address)
            page.until("return document.getElementById('counts').textContent.startsWith('15 answers')")
            assert current(read_labels(tmp_path / "run" / BOOK)) == told
            act(page, "u", 14)
            page.emulate(390)
            assert page.run("return document.documentElement.scrollWidth") <= 390
            page.until("return document.querySelectorAll('button.key').length > 4")
            page.run(
                "[...document.querySelectorAll('button.key')].find((each) => /Done/.test(each.textContent)).click()"
            )
            page.until("return document.getElementById('title').textContent === 'Done'")
        said, _ = process.communicate(timeout=120)
        assert "Accuracy, with its 95 % interval" in said
        assert (tmp_path / "run" / "result.json").is_file()
    finally:
        process.kill()
        process.wait(30)
