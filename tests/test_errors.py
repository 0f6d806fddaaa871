"""Text of unknown origin is shown, never obeyed."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osp.errors import UserError, printable, user_path


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x2100, exclude_categories=()), max_size=20))
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    left = printable(text)
    assert not [char for char in left if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    assert not {*left} & {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)}
    left.encode("utf-8")  # no lone surrogate
    assert printable(left) == left


def test_ordinary_names_stay_as_they_are() -> None:
    names = "Käse, 猫, кошка, \U0001f469\u200d\U0001f52c, می\u200cخواهم, [/x], a\\b"
    assert printable(names) == names


def test_line_breaks_are_kept_where_a_message_has_several_lines() -> None:
    assert printable("a\nb\r\x1b]0;title\x07", lines=True) == "a\nb\\r\\x1b]0;title\\x07"
    assert printable("a\nb\x9b31m\udc80") == "a\\nb\\x9b31m\\udc80"


def test_a_home_folder_of_nobody_is_refused() -> None:
    with pytest.raises(UserError, match="no home folder ~nobody_of_that_name"):
        user_path("~nobody_of_that_name/data")
    assert user_path("plain/data") == Path("plain/data")
    assert user_path("~") == Path.home()


def test_a_word_of_thousands_of_characters_is_named_by_its_beginning() -> None:
    assert str(UserError(f"no option {'a' * 5000} here")) == f"no option {'a' * 60}... (5,000 characters) here"
    several = "words " * 1000
    assert str(UserError(several)) == several
