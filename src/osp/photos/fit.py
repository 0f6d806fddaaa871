"""`osp.fit`: from a folder of sorted photographs and a pile of others to a classifier that also says what is foreign.

Read `fit` from top to bottom. The run folder (`osp.photos.folder`) appears whole, at the end; until then only the
feature cache grows, so that a fit that was stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.source import Progress
from osp.errors import UserError, printable, user_path
from osp.files import check_writable
from osp.methods import get
from osp.nets.pretrained import Backbone
from osp.photos.backbones import open_backbone
from osp.photos.estimates import tested
from osp.photos.features import Rows, compute
from osp.photos.folder import check_free, labels_of, result_of, write_fit
from osp.photos.instant import Instant, fit_instant
from osp.photos.model import PhotoModel
from osp.photos.page.reading import kept_in
from osp.photos.reading import Listed, Photographs, list_pile, list_sorted, list_test, read
from osp.photos.saying import (
    about_threshold,
    in_words,
    no_pile,
    pile_or_not,
    then_and_now,
    what_there_is,
    with_time_left,
)
from osp.runs.folder import RunFolder
from osp.runs.run import Run
from osp.version import __version__

ALONE, BOTH = "labels alone", "labels and pile"


def _silent(_: str) -> None:
    """Say nothing."""


def fit(
    sorted_dir: str | Path,
    pile_dir: str | Path | None,
    out: str | Path,
    *,
    test: str | Path | None = None,
    backbone: str | Backbone | None = None,
    method: str = "instant",
    earlier: str | Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = _silent,
    progress: Progress | None = None,
) -> Run:
    """Fit a classifier on sorted photos and a pile of others, through a frozen pretrained network.

    Every label teaches; accuracies come from cross-validation, and from the folder `test` where there is one.

    Parameters
    ----------
    sorted_dir : a folder with one folder per class; their names are the classes.
    pile_dir : a folder of unsorted photos, of these classes or of none; None: there is no pile.
    out : a new or empty folder for the fit.
    test : a folder like `sorted_dir` with photos to test on; folders of other names hold photos of no class.
    backbone : "lite0" (the default), "hf:NAME_OR_FOLDER" (extra `hf`), or an `osp.nets.pretrained.Backbone`.
    method : "instant", or a method of `osp.methods` that trains on from the instant answer; the better one is kept.
    earlier : the folder of a fit to go on from: its labels count beside those in `sorted_dir`, which win where they
        differ, and its pile and backbone are used again where none is given.
    seed : of the folds of cross-validation and all else that is random.
    say, progress : are told what is done and why, and how far the features are.

    Returns
    -------
    Run : the folder (`path`), the numbers (`result`) and the `model`, whose `predict(files)` gives one
        prediction per file.

    Raises
    ------
    UserError : something that you can mend: a folder that is missing or in use, fewer than two classes, no photo that
        can be read, an unknown backbone or method.

    >>> import osp, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, color in ("red", (200, 0, 0)), ("blue", (0, 0, 200)):
    ...         place = Path(folder, "sorted", name)
    ...         place.mkdir(parents=True)
    ...         for size in (24, 32, 40):
    ...             Image.new("RGB", (size, size), color).save(place / f"{size}.png")
    ...     fitted = osp.fit(f"{folder}/sorted", None, f"{folder}/fit")
    ...     said = list(fitted.model.predict([f"{folder}/sorted/red/32.png"]))
    >>> fitted.result["classes"], said[0].decision.label
    ({'blue': 3, 'red': 3}, 'red')
    """
    started = time.monotonic()
    folder = user_path(out)
    check_free(folder)
    check_writable(folder)
    if seed < 0:
        raise UserError(f"seed={seed}: a whole number from 0 on.")
    if method != "instant":
        get(method).check_shape((1,))  # an unknown one, or one that needs pixels, is refused before any work
    before = None if earlier is None else result_of(user_path(earlier))
    old = [] if earlier is None else labels_of(user_path(earlier))
    asked = backbone
    if before is not None:
        pile_dir, backbone = pile_dir or before["pile"], backbone or before["backbone"]
    labeled_files, classes = list_sorted(user_path(sorted_dir), old)
    pile_files = list_pile(None if pile_dir is None else user_path(pile_dir))
    test_files = Listed() if test is None else list_test(user_path(test), classes)
    say(what_there_is(labeled_files, classes, pile_files, test_files))
    network = backbone if isinstance(backbone, Backbone) else _open(backbone or "lite0", asked is not None)
    say(
        f"Looking at them with {network.name}, pretrained and frozen, at {network.size}x{network.size} pixels: with "
        "few labels its features teach more than pixels. They are computed once and kept in the cache."
    )
    photos = read(labeled_files, classes, pile_files, test_files, network, with_time_left(progress, say))
    for note in photos.notes:
        say(note)
    for number in np.flatnonzero(photos.counts == 1):
        say(f"The class {classes[number]!r} has one photo: it is learned, but nothing can be said of its accuracy.")
    if not len(photos.pile_use):
        why = no_pile(pile_dir, len(pile_files.files), _all_sorted(photos))
        say(f"{why} The classifier learns from the labels alone.")
    looked = time.monotonic()
    labeled, labels = photos.labeled.rows(photos.use), photos.labels[photos.use]
    pile = Rows(photos.pile, photos.pile_use)
    alone = fit_instant(labeled, labels, pile[:0], classes, seed)
    instant = fit_instant(labeled, labels, pile, classes, seed) if len(pile) else alone
    say(f"Instant answer, {time.monotonic() - looked:.1f} s after the features: {in_words(instant.estimate)}.")
    if before is not None and (then := before["estimates"].get(kept_in(before))) is not None:
        say(then_and_now(then["accuracy"], len(old), len(labels), tuple(before["classes"]), classes))
    answers, kept = {ALONE: alone}, ALONE
    if len(pile):
        kept = better(alone, instant)
        answers |= {ALONE: instant.with_classes_of(alone) if kept == ALONE else alone, BOTH: instant}
        say(pile_or_not(alone.estimate, instant.estimate, kept == ALONE))
    if method != "instant":
        learned, won = _trained(instant, photos, network, method, seed, with_time_left(progress, say), progress)
        if learned is None:
            say(f"{method} was not tried: it needs a pile, and a class with two photos.")
        else:
            name = f"{method} from there"
            verdict = f"no better than {kept} by cross-validation, so that is kept"
            if won is learned and _balanced(learned) > _balanced(answers[kept]):
                kept, verdict = name, "better, and kept"
            answers[name] = learned
            say(f"Trained by {method} from there: {in_words(learned.estimate)}. It is {verdict}.")
    best = answers[kept]
    say(about_threshold(len(best.id_scores), len(best.pile_scores)))
    model = PhotoModel(best, network)
    result = {
        "kind": "photos",
        "version": __version__,
        "sorted": os.path.abspath(user_path(sorted_dir)),
        "pile": None if pile_dir is None else os.path.abspath(user_path(pile_dir)),
        "backbone": network.name,
        "asked": {
            "method": method,
            "seed": seed,
            "test": None if test is None else os.path.abspath(user_path(test)),
            "from": None if earlier is None else os.path.abspath(user_path(earlier)),
        },
        "answer": method if kept not in (ALONE, BOTH) else "instant",
        "kept": kept,
        "classes": dict(zip(classes, map(int, photos.counts), strict=True)),
        "estimates": {name: asdict(each.estimate) if each.estimate else None for name, each in answers.items()},
        "test": {name: _tested(each, photos) for name, each in answers.items()} if len(photos.test) else None,
    }
    write_fit(folder, model, photos, result, started)
    return Run(RunFolder(folder), result, open_model=lambda _: model)


def _open(name: str, asked: bool) -> Backbone:
    """The backbone of this name; one that only the folder of an earlier fit names is never fetched."""
    try:
        return open_backbone(name, fetch=asked)
    except UserError as error:
        raise error if asked else UserError(f"--from looks at photos with {printable(name)}. {error}") from None


def _all_sorted(photos: Photographs) -> bool:
    """Whether every photo of the pile is one of the sorted ones."""
    twins = {row for group in photos.duplicates.in_both for row in group.pile}
    return not photos.unreadable_pile and len(twins) == len(photos.pile)


def better(alone: Instant, both: Instant) -> str:
    """The name of the one with the larger cross-validated accuracy, all classes counted alike.

    Where they are equal, or nothing can be held out, it is labels and pile: classes and OOD score then use the same
    features.
    """
    if alone.estimate is None or both.estimate is None:
        return BOTH
    return ALONE if _balanced(alone) > _balanced(both) else BOTH


def _balanced(answer: Instant) -> float:
    return -1.0 if answer.estimate is None else answer.estimate.balanced_accuracy


def _trained(
    instant: Instant,
    photos: Photographs,
    network: Backbone,
    method: str,
    seed: int,
    looking: Progress,
    training: Progress | None,
) -> tuple[Instant | None, Instant]:
    """The instant answer trained further on the views that the method draws from, and the better of both."""
    from osp.photos.learning import MOST, improve, views_for

    chosen = np.random.default_rng(seed).permutation(len(photos.pile_use))[:MOST]
    pile = photos.pile_use[np.sort(chosen)]
    files = [*(photos.labeled.files[i] for i in photos.use), *(photos.pile.files[i] for i in pile)]
    views = views_for(method, len(photos.classes))
    features = compute(files, network, views, looking)
    if len(features) < len(files):
        raise UserError(f"{features.unreadable[0][0]} has changed since it was read first. Start the fit again.")
    stored = {view: features.rows(view=view) for view in views}
    return improve(instant, stored, photos.labels[photos.use], method, seed, training)


def _tested(instant: Instant, photos: Photographs) -> dict[str, Any]:
    """Figures on the test photos."""
    features = photos.test.rows()
    predicted = instant.predict_proba(features).argmax(axis=1)
    return tested(predicted, photos.test_labels, instant.ood_score(features), instant.threshold())
