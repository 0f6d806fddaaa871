"""`osp label`: a person answers, and what is known of the pile follows at once.

Two threads work behind the page: one computes features, the other lays the photos out, guesses after every answer, and
cross-validates when nothing else is to do. An answer is in labels.csv before anybody is told that it counts; all else
can be computed again from there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.source import Progress
from osp.errors import UserError, printable
from osp.files import check_writable, make_folder, owned
from osp.nets.pretrained import Backbone
from osp.photos.asking import NONE, OPEN, Guess, Layout, Question, guess, lay_out, next_question, strip
from osp.photos.features import compute
from osp.photos.fit import better_of, fit
from osp.photos.instant import fit_instant
from osp.photos.labels import BOOK, Book, Label, current
from osp.photos.labels import NONE as NO_CLASS
from osp.photos.photographs import Listed
from osp.runs.run import Run

MOST = 50_000
"""Photos that are laid out; of a larger pile a sample is."""
FIRST, MOST_AT_ONCE, SECONDS = 64, 1024, 2.0
"""Photos whose features are computed at first and at most; four times as many the next time, while that takes so long
or less."""
GROWN = 1.5
"""Times as many photos, and they are laid out again."""
QUIET = 1.5
"""Seconds without an answer after which figures are computed."""
LONGEST_NAME = 80


@dataclass(frozen=True)
class Known:
    """What was worked out last, of the photos whose features were there."""

    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Of the photos, by row."""
    keys: tuple[str, ...] = ()
    layout: Layout | None = None
    names: tuple[str, ...] = ()
    labels: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    guessed: Guess | None = None
    answers: int = -1
    """After how many lines of the book."""


class Labeling:
    """The state of one `osp label`; every method may be called from any thread."""

    def __init__(
        self, out: Path, sorted_files: Listed, classes: Sequence[str], pile: Sequence[str], seed: int = 0
    ) -> None:
        self.book = Book(out / BOOK)
        self.base = {file: classes[label] for file, label in zip(sorted_files.files, sorted_files.labels, strict=True)}
        order = np.random.default_rng(seed).permutation(len(pile))
        others = [pile[i] for i in order if pile[i] not in self.base]
        self.files = [*self.base, *others[:MOST]]
        """By number: those of the folders first, then the pile in a random order: any part is like the whole."""
        self.left_over = max(len(others) - MOST, 0)
        self.known = Known()
        self.done = 0
        """Files whose features are there, or cannot be computed."""
        self.figures: dict[str, Any] = {}
        self.problem = ""
        self._features: list[np.ndarray] = []
        self._numbers: list[int] = []
        self._keys: list[str] = []
        self._shown: set[int] = set()
        self._change = threading.Condition(threading.RLock())
        self._stopped = False
        self._threads: list[threading.Thread] = []

    # What works behind the page

    def start(self, backbone: Callable[[], Backbone]) -> None:
        """Begin to look at the photos; the backbone is opened there, so that a page can be shown before."""
        work = (lambda: self._look(backbone()), self._think)
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let both threads end."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join(timeout=60)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the page says it; the answers are safe
            with self._change:
                self.problem = printable(error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")

    def _look(self, backbone: Backbone) -> None:
        size = FIRST
        while self.done < len(self.files) and not self._stopped:
            begun = time.monotonic()
            part = self.files[self.done : self.done + size]
            found = compute(part, backbone)
            with self._change:
                self._features.append(found.rows())
                self._numbers += [self.done + int(i) for i in found.kept]
                self._keys += found.keys
                self.done += len(part)
                self._change.notify_all()
            size = min(4 * size, MOST_AT_ONCE) if time.monotonic() - begun < SECONDS else max(size // 2, FIRST)

    def _think(self) -> None:
        while not self._stopped:
            self.think()
            with self._change:
                if self._stopped or not self._current():
                    continue
                quiet = not self._change.wait(QUIET)
                due = quiet and self._current() and self._whole() and not self._stopped
                due = due and self.figures.get("answers") != len(self.book.answers)
            if due:
                self.cross_validate()

    def _whole(self) -> bool:
        return self.done >= len(self.files)

    def _grown(self) -> bool:
        rows, laid = len(self._numbers), len(self.known.numbers)
        return rows > laid and (self._whole() or rows >= GROWN * laid)

    def _current(self) -> bool:
        return not self._grown() and (not self._numbers or self.known.answers == len(self.book.answers))

    def think(self) -> None:
        """Lay out what is new, and guess from all answers so far."""
        with self._change:
            known, grown = self.known, self._grown()
            if self._current():
                return
            if grown:
                features = np.concatenate(self._features)
                numbers, keys = np.array(self._numbers, np.int64), tuple(self._keys)
            else:
                numbers, keys = known.numbers, known.keys
            names, labels = self._labels(numbers, keys)
            answers = len(self.book.answers)
        layout = lay_out(features) if grown else known.layout
        if layout is None:
            return
        guessed = guess(layout, labels, len(names))
        with self._change:
            self.known = Known(numbers, keys, layout, names, labels, guessed, answers)
            self._change.notify_all()

    def _labels(self, numbers: np.ndarray, keys: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """The classes that have a photo, and the label of every row."""
        told = {content: label.name for content, label in current(self.book.answers).items()}
        by_key = {key: self.base[self.files[n]] for n, key in zip(numbers, keys, strict=True) if n < len(self.base)}
        said = [by_key.get(key) or told.get(key, "") for key in keys]
        names = tuple(sorted({name for name in said if name} - {NO_CLASS}))
        codes = {name: number for number, name in enumerate(names)} | {NO_CLASS: NONE, "": OPEN}
        return names, np.array([codes[name] for name in said], np.int64)

    def cross_validate(self) -> None:
        """Figures of the answer that a fit would give now, for how many answers they hold, and that answer itself in
        place of the guess: what is shown while nobody answers is what the run will say."""
        known = self.known
        found: dict[str, Any] = {"answers": known.answers}
        guessed = known.guessed
        if len(known.names) > 1 and guessed is not None:
            with self._change:
                features = np.concatenate(self._features)[: len(known.numbers)]
            once = np.isin(np.arange(len(known.keys)), np.unique(known.keys, return_index=True)[1])
            has, none = (known.labels >= 0) & once, (known.labels == NONE) & once
            rest = known.labels == OPEN
            labeled, names = (features[has], known.labels[has]), known.names
            instant = fit_instant(*labeled, features[rest], names, none=features[none], asked_person=True)
            if rest.any():
                instant = better_of(fit_instant(*labeled, features[:0], names, asked_person=True), instant)
                chances, scores = instant.answer(features[rest])
                inside = scores <= instant.threshold()
                classes, inner = guessed.classes.copy(), guessed.inside.copy()
                classes[rest], inner[rest] = chances.argmax(axis=1), inside
                guessed = replace(guessed, classes=classes, inside=inner)
                found |= {"in": int(inside.sum()), "strangers": None, "before": self.figures.get("strangers")}
                if instant.belonging is not None:
                    found["strangers"] = round(float((1 - instant.belonging.chance(scores[inside])).sum()))
            if instant.estimate is not None:
                each = instant.estimate
                found |= {"accuracy": each.accuracy, "low": each.low, "high": each.high, "images": each.images}
        with self._change:
            self.figures = found
            if self.known is known:
                self.known = replace(known, guessed=guessed)

    # What the page asks and says

    def view(self, about: str = "") -> dict[str, Any]:
        """Everything that the page shows; `about` names a class whose photos are to be looked at, and is there again
        where the question is about them."""
        with self._change:
            known, shown = self.known, self._shown
            names, labels = self._labels(known.numbers, known.keys)
            asked, stripped = None, ""
            if known.guessed is not None and known.layout is not None:
                if about in known.names and names == known.names:
                    asked, stripped = strip(known.guessed, labels, known.names.index(about)), about
                if asked is None or not len(asked.rows):
                    stripped = ""
                    rows = [int(row) for row in np.flatnonzero(np.isin(known.numbers, list(shown)))]
                    asked = next_question(known.layout, known.guessed, labels, rows)
            return {
                "answers": len(self._back()),
                "version": len(self.book.answers),
                "classes": self._counts(known, names, labels),
                "none": int((labels == NONE).sum()),
                "open": len(self.files) - len(self.base) - int((labels[known.numbers >= len(self.base)] > OPEN).sum()),
                "looked": self.done,
                "photos": len(self.files),
                "left_over": self.left_over,
                "current": known.answers == len(self.book.answers),
                "figures": self.figures,
                "problem": self.problem,
                "question": self._shape(asked, known),
                "about": stripped,
            }

    def _counts(self, known: Known, names: tuple[str, ...], labels: np.ndarray) -> list[dict[str, Any]]:
        """Classes in the order in which they were named: their keys on the page stay."""
        told = Counter(labels[labels >= 0].tolist())
        taken: Counter[str] = Counter()
        if known.guessed is not None and known.names:
            rows = known.guessed.inside & (labels == OPEN)
            taken.update(known.names[c] for c in known.guessed.classes[rows])
        said = (label.name for answer in self.book.answers for label in answer)
        order = [name for name in dict.fromkeys([*sorted(self.base.values()), *said]) if name in names]
        return [{"name": name, "labeled": told[names.index(name)], "taken": taken[name]} for name in order]

    def _shape(self, asked: Question | None, known: Known) -> dict[str, Any] | None:
        if asked is None:
            return None
        guessed = known.names[asked.guess] if 0 <= asked.guess < len(known.names) else ""
        numbers = [int(known.numbers[row]) for row in asked.rows]
        return {"photos": numbers, "guess": guessed, "names": [printable(Path(self.files[n]).name) for n in numbers]}

    def answer(self, photos: Sequence[int], others: Sequence[int], name: str) -> None:
        """One answer: these photos are of the class `name` (or none of them); `others` were shown and left open."""
        with self._change:
            keys = dict(zip(self._numbers, self._keys, strict=True))
            wrong = [n for n in (*photos, *others) if n not in keys or n < len(self.base)]
            if wrong:
                raise UserError(f"There is no photo {wrong[0]} to label.")
            if name and photos:
                self.book.add([Label(self.files[n], checked_name(name), keys[n]) for n in dict.fromkeys(photos)])
            self._shown.update(photos, others)
            self._change.notify_all()

    def undo(self) -> list[int]:
        """Take the last answer back, and the numbers of its photos."""
        with self._change:
            back = self._back()
            if not back:
                return []
            self.book.add(back[-1])
            numbers = {key: n for n, key in zip(self._numbers, self._keys, strict=True)}
            again = [numbers[label.content] for label in back[-1] if label.content in numbers]
            self._shown.difference_update(again)
            self._change.notify_all()
            return again

    def _back(self) -> list[list[Label]]:
        """What would take each answer back, of those that were not taken back yet."""
        now: dict[str, str] = {}
        found: list[list[Label]] = []
        for answer in self.book.answers:
            after = {label.content: label.name for label in answer}
            if found and {label.content: label.name for label in found[-1]} == after:
                found.pop()
            else:
                found.append([label._replace(name=now.get(label.content, "")) for label in answer])
            now |= after
        return found

    def classes(self) -> set[str]:
        """That have a label."""
        told = {label.name for label in current(self.book.answers).values()}
        return (set(self.base.values()) | told) - {NO_CLASS}


def checked_name(name: str) -> str:
    """A class as it may be called: it becomes a folder."""
    name = name.strip()
    bad = not name or len(name) > LONGEST_NAME or not name.isprintable() or any(mark in name for mark in "/\\")
    if bad or name.startswith((".", "_")):
        raise UserError(f"{printable(name[:LONGEST_NAME])!r} cannot be the name of a class: it becomes a folder.")
    return name


@contextlib.contextmanager
def labeling_in(out: Path) -> Iterator[None]:
    """A folder to label in: new, or one in which somebody has labeled before, and does so no longer."""
    if out.is_dir() and any(out.iterdir()) and not (out / BOOK).is_file():
        raise UserError(f"The folder {out} is not empty and has no {BOOK}; name a new one with --out.")
    check_writable(out)
    make_folder(out)
    with owned(out / "label.lock", f"Another osp label works in {out}."):
        yield


def finish(
    labeling: Labeling,
    out: Path,
    sorted_dir: Path | None,
    pile: Path,
    earlier: Path | None,
    say: Callable[[str], None],
    progress: Progress | None,
) -> Run | None:
    """Write the run as a fit like any other; None where two classes are not named yet."""
    if len(labeling.classes()) < 2:
        return None
    labels = labeling.book.path
    try:
        return fit(sorted_dir, pile, out, labels=labels, earlier=earlier, say=say, progress=progress)
    except UserError as error:
        kept = f"Your answers are kept in {labels}: the same command goes on with them."
        raise UserError(f"No run was written. {error} {kept}") from None
