"""Tables are read as they were written, whatever names their cells hold."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from osp.tables import NUMBER, defused, fused, read_table, write_table

ODD = st.one_of(st.text(), st.text(alphabet="'+-=@ \t\nx1.", max_size=5))


@given(ODD)
def test_what_was_defused_is_given_back_and_begins_like_no_formula(text: str) -> None:
    assert fused(defused(text)) == text
    assert NUMBER.fullmatch(text) or not defused(text).lstrip().startswith(("=", "+", "-", "@"))


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    cells = ["+1", "-1", "'-1", "-1.5e-07", "=x", "@home", "'+1", "'s", "''=", "a,b", 'q"', "", "two\nlines"]
    write_table(tmp_path / "x.csv", ("class", "file"), [(cell, f"{cell}.jpg") for cell in cells])
    assert [row["class"] for row in read_table(tmp_path / "x.csv")] == cells
    assert [row["file"] for row in read_table(tmp_path / "x.csv")] == [f"{cell}.jpg" for cell in cells]
