"""What `osp fit` tells the user while it works, in sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.source import Progress
from osp.machine import duration
from osp.photos.estimates import Estimate
from osp.photos.reading import Listed

FEW = 30
"""With fewer held-out images than this, the interval is said to be wide."""


def what_there_is(labeled: Listed, classes: Sequence[str], pile: Listed, test: Listed) -> str:
    counts = np.bincount(labeled.labels, minlength=len(classes))
    listed = ", ".join(f"{name} {count}" for name, count in zip(classes, counts, strict=True))
    tests = f", {len(test.files):,} for testing" if test.files else ""
    unsorted = f", {len(pile.files):,} in the pile" if pile.files else ""
    return f"{len(labeled.files):,} sorted photos ({listed}){unsorted}{tests}."


def no_pile(folder: str | Path | None, files: int, all_sorted: bool) -> str:
    """Why there is nothing to learn from beside the sorted photos.

    >>> no_pile(None, 0, False), no_pile("p", 12, True)
    ('There is no pile.', 'All 12 photos of the pile p are sorted photos, too, so there is no pile.')
    """
    if folder is None:
        return "There is no pile."
    if not files:
        return f"The pile {folder} holds no image (a wrong path?)."
    if all_sorted:
        return f"All {files:,} photos of the pile {folder} are sorted photos, too, so there is no pile."
    return (
        f"None of the {files:,} photos of the pile {folder} can be used: they are sorted, test photos, or unreadable."
    )


def then_and_now(accuracy: float, old: int, new: int, before: Sequence[str], now: Sequence[str]) -> str:
    """The accuracy of an earlier fit, and whether it compares."""
    text = f"The earlier fit, of {old} labels: accuracy {accuracy:.1f} %; now {new} labels."
    if set(before) == set(now):
        return text
    what = f"{len(before)} classes then, {len(now)} now" if len(before) != len(now) else "Other classes now than then"
    return f"{text} {what}: the figures do not compare."


def with_time_left(progress: Progress | None, say: Callable[[str], None]) -> Progress:
    """Pass progress on, and say once, after a few seconds, how long the features will take."""
    begun: dict[str, tuple[float, int]] = {}
    told = False

    def report(done: int, total: int, text: str) -> None:
        nonlocal told
        since, first = begun.setdefault(text, (time.monotonic(), done))
        passed = time.monotonic() - since
        if not told and text.startswith("Features") and passed > 3 and first < done < total:  # not while files are read
            told = True
            left = passed * (total - done) / (done - first)
            say(f"{total:,} photos are new; about {duration(left)} to go. Stopping loses nothing: start it again.")
        if progress is not None:
            progress(done, total, text)

    return report


def in_words(estimate: Estimate | None) -> str:
    """The accuracy with what it rests on."""
    if estimate is None:
        return "its accuracy is unknown, for every class has one photo"
    few = "; few photos, so a wide interval" if estimate.images < FEW else ""
    return (
        f"accuracy {estimate.accuracy:.1f} % ({estimate.low:.0f} to {estimate.high:.0f}), {estimate.correct} of "
        f"{estimate.images} photos held out in turn{few}"
    )


def pile_or_not(alone: Estimate | None, both: Estimate | None, kept_alone: bool) -> str:
    """Which of the two is kept to tell the classes apart, and why."""
    if alone is None or both is None:
        return "Kept: labels and pile. With one photo per class it cannot be compared with labels alone."
    figures = f"{alone.balanced_accuracy:.1f} % without the pile, {both.balanced_accuracy:.1f} % with it"
    if kept_alone:
        return (
            f"The pile does not help to tell the classes apart here: {figures}, all classes counted alike. Kept: "
            "labels alone. The pile still says what is foreign."
        )
    if both.balanced_accuracy == alone.balanced_accuracy:
        return f"Kept: labels and pile ({figures}: a tie; so classes and OOD score use the same features)."
    return f"Kept: labels and pile ({figures}, all classes counted alike)."


def about_threshold(held_out: int, pile: int) -> str:
    """What the OOD threshold rests on, and so how far it can be trusted."""
    if held_out:
        few = ": few, so take it as rough" if held_out < FEW else ""
        return f"The OOD threshold is set to let through 95 % of the known classes, by {held_out} photos held out{few}."
    if pile < 2:
        return "There is no OOD threshold: with one photo per class and no pile nothing can be called foreign."
    return (
        "The OOD threshold is a guess from the pile: with one photo per class none can be held out, and it may lose "
        "far more than 5 % of the known classes (9 to 27 % in tests of ours). A second photo per class mends that."
    )


def let_in(accepted: int, counted: int, share: float, tested: dict[str, Any] | None = None) -> str:
    """How many of the accepted photos of a pile are probably foreign, where that is many.

    Foreign test photos, where there are any, have shown how many get in: of the pile's n photos, F of them foreign, as
    many get in as were accepted, k (n - F) + f F. Else the estimated share of the pile is known, of which the threshold
    lets 95 % through; the rest must be foreign.

    >>> let_in(58, 60, 0.8)[:79]
    'So about 12 of these 58 are probably foreign: what looks much like a class gets'
    >>> let_in(48, 60, 0.8)
    ''
    >>> let_in(66, 90, 0.7, {"foreign": 20, "foreign_accepted": 25.0, "known_accepted": 97.5})[:78]
    'As 25 % of the foreign test photos get in, about 8 of these 66 are probably fo'
    """
    stricter = "`osp predict --accept 0.8` is stricter."
    if tested and tested.get("foreign"):
        known, foreign = tested["known_accepted"] / 100, tested["foreign_accepted"] / 100
        rate = f"{tested['foreign_accepted']:.0f} % of the foreign test photos get in"
        if known - foreign < 0.1:
            return (
                f"As {rate}, nearly as many as of the known ones, nobody can say how many of these {accepted:,} are "
                f"foreign. {stricter}"
            )
        strangers = min(max((known * counted - accepted) / (known - foreign), 0), counted)
        inside = min(round(foreign * strangers), accepted)
        if inside < max(2, 0.1 * accepted):
            return ""
        return f"As {rate}, about {inside:,} of these {accepted:,} are probably foreign. {stricter}"
    inside = accepted - round(0.95 * share * counted)
    if inside < max(2, 0.1 * accepted):
        return ""
    why = "what looks much like a class gets in"
    return f"So about {inside:,} of these {accepted:,} are probably foreign: {why}. {stricter}"
