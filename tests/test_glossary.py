"""The glossary of CONTRIBUTING.md explains each word once, and points at what exists."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8").split("## Glossary")[1].split("\n## ")[0]
ROWS = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("|")][2:]


def test_each_word_is_explained_once() -> None:
    words = [word.strip() for row in ROWS for word in row[0].split(",")]
    assert len(words) == len(set(words))
    named = "pool partition kept aside share anchor bank view stream stage refresh plan recipe run store identity score"
    assert set(named.split()) <= set(words)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(osp\.[\w.]+)`", TEXT))))
def test_what_it_points_at_exists(name: str) -> None:
    resolve_name(name)
