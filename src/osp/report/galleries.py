"""Which images of a run are worth a look: the same choices for the images of a training and the photos of a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from osp.evaluate.predictions import NONE, Judged
from osp.report.view import Gallery, Shot, percent

Item = TypeVar("Item")

NEIGHBORS = 5
MOST = 24


def both_ends(ordered: Sequence[Item], most: int) -> tuple[Sequence[Item], Sequence[Item]]:
    """The first and the last of a row, the last one first; none is in both.

    >>> both_ends("abcde", 3)
    ('abc', 'ed')
    """
    cut = min(most, -(-len(ordered) // 2))
    return ordered[:cut], ordered[::-1][: min(most, len(ordered) - cut)]


def shots(
    images: Judged,
    rows: Iterable[int],
    caption: Callable[[int], str],
    framed: np.ndarray | None = None,
    keys: np.ndarray | None = None,
) -> list[Shot]:
    """These rows as pictures, by default under the class that they were given."""
    of = images.predicted if keys is None else keys
    return [Shot(images.where[i], int(of[i]), caption(i), framed is not None and bool(framed[i])) for i in rows]


def surest(images: Judged, number: int, each: int) -> tuple[Sequence[int], Sequence[int]]:
    """Rows of the images that the model is surest and least sure show this class."""
    members = np.flatnonzero(images.predicted == number)
    order = members[np.lexsort((images.scores[members], -images.confidence[members]))]
    return both_ends(order.tolist(), each)


def by_score(images: Judged, names: Sequence[str], framed: np.ndarray, note: str, most: int = MOST) -> list[Gallery]:
    """The images with the largest and the smallest OOD scores."""

    def caption(row: int) -> str:
        return f"{images.scores[row]:.3g} ({names[images.predicted[row]]}?)"

    order = np.argsort(images.scores, kind="stable")[::-1].tolist()
    unknown, known = (shots(images, rows, caption, framed) for rows in both_ends(order, most))
    return [Gallery("Most unknown", unknown, note), Gallery("Least unknown", known)]


def mistakes(images: Judged, names: Sequence[str], title: str, of: str) -> Gallery:
    """Images of a class that were given another one, the surest first; `of` says what they are."""
    known = np.flatnonzero(images.truth >= 0)
    wrong = known[images.predicted[known] != images.truth[known]]
    order = wrong[np.argsort(-images.confidence[wrong], kind="stable")][:MOST]

    def caption(row: int) -> str:
        truth, said = names[images.truth[row]], names[images.predicted[row]]
        return f"{truth}, predicted {said} {percent(images.confidence[row])}"

    return Gallery(title, shots(images, order, caption, keys=images.truth), f"{len(wrong):,} of {len(known):,}{of}")


def accepted(images: Judged, names: Sequence[str], title: str, why: str) -> Gallery:
    """Images of none of the classes that the model does not call unknown, the least so first."""
    strange = images.truth == NONE
    missed = np.flatnonzero(strange & ~images.outside)
    order = missed[np.argsort(images.scores[missed], kind="stable")][:MOST]

    def caption(row: int) -> str:
        return f"{names[images.predicted[row]]}? {images.scores[row]:.2f}"

    return Gallery(title, shots(images, order, caption, strange), f"{len(missed):,} of {int(strange.sum()):,}; {why}")


def doubtful(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Rows whose `NEIGHBORS` nearest other rows all have another target; none where a class is smaller than that."""
    if len(targets) <= NEIGHBORS:
        return np.empty(0, np.int64)
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    common = np.isin(targets, np.flatnonzero(np.bincount(targets) > NEIGHBORS))
    found = []
    for row in np.flatnonzero(common):
        alike = units @ units[row]
        alike[row] = -np.inf
        if (targets[np.argpartition(-alike, NEIGHBORS)[:NEIGHBORS]] != targets[row]).all():
            found.append(row)
    return np.array(found, np.int64)


def disagreements(
    images: Judged, names: Sequence[str], theirs: Judged, their_names: Sequence[str], name: str
) -> Gallery:
    """Images of which two runs say different things: of each pair of answers in turn, the surest of this run first."""

    def answers(of: Judged, classes: Sequence[str]) -> list[str | None]:
        pairs = zip(of.predicted, of.outside, strict=True)
        return [None if outside else classes[number] for number, outside in pairs]

    other = dict(zip(theirs.where, answers(theirs, their_names), strict=True))
    own = answers(images, names)
    kinds: dict[tuple[str | None, str | None], list[Shot]] = {}
    for row in np.argsort(-images.confidence, kind="stable"):
        where = images.where[row]
        if where in other and other[where] != own[row]:
            pair = own[row], other[where]
            here, there = ("unknown" if each is None else each for each in pair)
            shot = Shot(where, int(images.predicted[row]), f"{here}; {name}: {there}", bool(images.outside[row]))
            kinds.setdefault(pair, []).append(shot)
    found = [shot for several in zip_longest(*kinds.values()) for shot in several if shot is not None]
    some = f"; {MOST} of them shown, of each kind of disagreement in turn" if len(found) > MOST else ""
    return Gallery("The two runs disagree", found[:MOST], f"{len(found):,} photos of the pile{some}.")
