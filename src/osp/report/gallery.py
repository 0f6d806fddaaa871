"""Rows of images worth a look, of any run: one image is a `Shot`; what it is found by is the page's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Where = TypeVar("Where")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Shot(Generic[Where]):
    """One image with a word about it."""

    where: Where
    """Where it is found: the file of a photo, or a row of a data set."""
    key: int
    """The class under which it is filtered."""
    caption: str
    framed: bool = False
    """Known to be of none of the classes, or called so."""


@dataclass(frozen=True)
class Gallery(Generic[Where]):
    title: str
    shots: list[Shot[Where]]
    note: str = ""
    color: int | None = None
    """The class it is about."""
    parts: list[tuple[str, list[Shot[Where]]]] = field(default_factory=list)
    """Rows with a title each, where one row is not enough."""


def both_ends(ordered: Sequence[Item], most: int) -> tuple[Sequence[Item], Sequence[Item]]:
    """The first and the last of a row, the last one first; none is in both.

    >>> both_ends("abcde", 3)
    ('abc', 'ed')
    """
    cut = min(most, -(-len(ordered) // 2))
    return ordered[:cut], ordered[::-1][: min(most, len(ordered) - cut)]


def by_score(
    ordered: Sequence[Item], most: int, shot: Callable[[Item], Shot[Where]], note: str
) -> list[Gallery[Where]]:
    """The most and the least foreign, of items ordered by OOD score."""
    foreign, known = both_ends(ordered[::-1], most)
    return [Gallery("Most foreign", [*map(shot, foreign)], note), Gallery("Least foreign", [*map(shot, known)])]


def taken_for(truth: str, said: str, chance: float) -> str:
    """The caption of a mistake.

    >>> taken_for("cat", "dog", 0.912)
    'cat, taken for dog 91\\xa0%'
    """
    return f"{truth}, taken for {said} {percent(chance)}"


def percent(share: float) -> str:
    """A share as a whole percentage that is not broken over lines."""
    return f"{100 * share:.0f}\u00a0%"
