"""The page of a bench, as text and in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.browser import browser
from helpers.finished import finished
from osp import UserError
from osp.bench.figures import draw
from osp.bench.renderers import page
from osp.bench.sheets import Shown, sheet

EVIL = "<script>document.title='stolen'</script>"


def written(folder: Path) -> str:
    rows: list[list[Shown | str]] = [
        [f"method {n}", Shown(f"{90 + n}.0 ± 0.3", "a", "paper 98.0 (-7.0)", bold=n == 3)] for n in range(4)
    ]
    table = sheet("Table 1", ["method", EVIL], [*rows, [EVIL, Shown("not run", missing=True)]], ["a: smaller budget"])
    runs = [finished("supervised")]
    pictures = [path for name in ("figure-angle", "figure-method") for path in draw(name, runs, folder / "figures")]
    return page("bench & table1", EVIL, [table], pictures, ["Made somewhere."])


def test_the_page_has_all_of_it_in_one_file_and_names_are_text(tmp_path: Path) -> None:
    text = written(tmp_path)
    assert EVIL not in text
    assert "&lt;script&gt;document.title" in text
    assert text.count("data:image/svg+xml;base64,") == 4  # one angle, three diagrams, each once
    assert "http://" not in text
    assert "https://" not in text
    for said in ("bench &amp; table1", "<b>93.0 ± 0.3</b>", "paper 98.0 (-7.0)", "not run", "a: smaller budget"):
        assert said in text


def test_a_picture_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.svg"):
        page("x", "", [], [tmp_path / "gone.svg"])


def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(written(tmp_path), "utf-8")
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
