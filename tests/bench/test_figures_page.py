"""The page of a bench, as text and in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.browser import browser
from helpers.finished import finished
from osp import UserError
from osp.bench.figures import draw
from osp.bench.page import Cell, Figure, Page, Table, write_page

EVIL = "<script>document.title='stolen'</script>"


def page(folder: Path) -> Page:
    rows: list[list[Cell | str]] = [
        [f"method {n}", Cell(f"{90 + n}.0 ± 0.3", bold=n == 3, marks="a", below="paper 98.0 (-7.0)")] for n in range(4)
    ]
    table = Table("Table 1", ["method", EVIL], [*rows, [EVIL, Cell("not run", missing=True)]], ["a: smaller budget"])
    runs = [finished("supervised")]
    figures = [Figure(name, draw(name, runs, folder / "figures"), EVIL) for name in ("figure-angle", "figure-method")]
    return Page("bench & table1", ["First.", EVIL], [table], figures, ["Made somewhere."])


def test_the_page_has_all_of_it_in_one_file_and_names_are_text(tmp_path: Path) -> None:
    text = write_page(page(tmp_path), tmp_path / "page.html").read_text()
    assert EVIL not in text
    assert "&lt;script&gt;document.title" in text
    assert text.count("data:image/svg+xml;base64,") == 4  # one angle, three diagrams, each once
    assert "http://" not in text
    assert "https://" not in text
    for said in ("bench &amp; table1", "<b>93.0 ± 0.3</b>", "paper 98.0 (-7.0)", "not run", "a: smaller budget"):
        assert said in text


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(UserError, match=r"x\.txt"):
        write_page(Page("x", figures=[Figure("x", [tmp_path / "x.txt"])]), tmp_path / "page.html")
    with pytest.raises(UserError, match=r"gone\.png"):
        write_page(Page("x", figures=[Figure("x", [tmp_path / "gone.png"])]), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    path = write_page(page(tmp_path), tmp_path / "page.html")
    with browser(tmp_path / "browser") as shown:
        for width, scheme in ((1100, "light"), (390, "dark")):
            shown.emulate(width, scheme=scheme)
            shown.open(path)
            assert shown.run("return document.title") == "bench & table1"
            assert shown.run("return document.documentElement.scrollWidth") <= width
            assert shown.run("return [...document.images].map(i => i.complete && i.naturalWidth > 50)") == [True] * 4
        visible = "return [...document.querySelectorAll('tbody tr')].filter(r => r.offsetHeight > 0).length"
        assert shown.run(visible) == 5
        box = "const box = document.querySelector('.row-filter');"
        typed = f"{box} box.value = arguments[0]; box.dispatchEvent(new Event('input'))"
        shown.run(typed, "METHOD 2")
        assert shown.run(visible) == 1
        shown.run(typed, "")
        assert shown.run(visible) == 5
        assert shown.complaints() == []
