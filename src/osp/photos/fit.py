"""`osp.fit`: from a folder of sorted photographs and a pile of others to a classifier that also says what is unknown.

Read `fit` from top to bottom. The run folder (`osp.photos.folder`) appears complete, at the end; until then only the
feature cache grows, so that a fit that was stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.source import Progress
from osp.errors import UserError, printable, user_path
from osp.evaluate.estimates import Estimate, tested
from osp.methods import get
from osp.models.instant import Instant
from osp.models.photo import PhotoModel, open_backbone
from osp.nets.pretrained import Backbone
from osp.photos.features import Rows
from osp.photos.folder import labels_of, nones_of, write_fit
from osp.photos.groups import described, group_pile, named_groups
from osp.photos.instant import LEAST_PILE, fit_instant
from osp.photos.labels import BOOK, NONE, current, read_labels
from osp.photos.photographs import Listed, Photographs, list_none, list_pile, list_sorted, list_test, read
from osp.runs.fitted import answer_of, check_free, result_of
from osp.runs.folder import RunFolder
from osp.runs.run import Run
from osp.version import __version__

ALONE, BOTH = "labels alone", "labels and pile"
FEW = 30
"""With fewer held-out images than this, the interval is said to be wide."""
ONLY_MISTAKES = (
    " It may be lower because the new photos are hard, or because only mistakes were corrected: move some photos that "
    "were right out of _unsure into their classes, too. osp report NEW --compare EARLIER shows what changed."
)


def _silent(_: str) -> None:
    """Say nothing."""


def fit(
    sorted_dir: str | Path | None,
    pile_dir: str | Path | None,
    out: str | Path,
    *,
    labels: str | Path | None = None,
    none: str | Path | None = None,
    test: str | Path | None = None,
    backbone: str | Backbone | None = None,
    method: str = "instant",
    earlier: str | Path | None = None,
    name: Sequence[str] = (),
    seed: int = 0,
    say: Callable[[str], None] = _silent,
    progress: Progress | None = None,
) -> Run:
    """Fit a classifier on sorted photos and a pile of others, through a frozen pretrained network.

    Every label teaches; accuracies come from cross-validation, and from the folder `test` where there is one.

    Parameters
    ----------
    sorted_dir : a folder with one folder per class; their names are the classes. None: that of `earlier`, or all
        labels are in `labels`.
    pile_dir : a folder of unsorted photos, of these classes or of none; None: there is no pile.
    out : a new or empty folder for the fit.
    labels : a table of single photos and their classes, as `osp label` writes it; the class `none` means: none of them.
    none : a folder of photos that show none of the classes. They teach what is unknown.
    test : a folder like `sorted_dir` with photos to test on; folders of other names hold photos of no class.
    backbone : "lite0" (the default), "hf:NAME_OR_FOLDER" (extra `hf`), or an `osp.nets.pretrained.Backbone`.
    method : "instant", or a method of `osp.methods` that trains on from the instant answer; the better one is kept.
    earlier : the folder of a fit to go on from: its labels count beside those in `sorted_dir`, which win where they
        differ, and its pile, test photos and backbone are used again where none are given.
    name : groups of unknown photos of `earlier` that are classes now, as "group-3=heron": their surest photos teach.
    seed : of the folds of cross-validation and all else that is random.
    say, progress : are told what is done and why, and how far the features are.

    Returns
    -------
    Run : the folder (`path`), the numbers (`result`) and the `model`, whose `predict(files)` gives one
        prediction per file.

    Raises
    ------
    UserError : something that you can fix: a folder that is missing or in use, fewer than two classes, no photo that
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
    ...     said = list(fitted.model.predict_files([f"{folder}/sorted/red/32.png"]))
    >>> fitted.result["classes"], said[0].label
    ({'blue': 3, 'red': 3}, 'red')
    """
    started = time.monotonic()
    folder = user_path(out)
    check_free(folder, labeling=labels is not None and user_path(labels) == folder / BOOK)
    if seed < 0:
        raise UserError(f"seed={seed}: a whole number from 0 on.")
    if method != "instant":
        get(method).check_shape((1,))  # an unknown one, or one that needs pixels, is refused before any work
    before = None if earlier is None else result_of(user_path(earlier))
    old = [] if earlier is None else labels_of(user_path(earlier))
    told = {} if labels is None else current(read_labels(user_path(labels)))
    outside = [label for label in told.values() if label.name == NONE]
    asked, named = backbone, []
    if before is not None and earlier is not None:
        pile_dir, backbone = pile_dir or before.get("pile"), backbone or before["backbone"]
        named = named_groups(user_path(earlier), before, name)
        sorted_dir = sorted_dir or before.get("sorted")
        tested = (before.get("asked") or {}).get("test")
        test = test or (tested if tested and os.path.isdir(tested) else None)
        outside += [each for each in nones_of(user_path(earlier)) if each.content not in told]
    elif name:
        raise UserError("--name names a group of an earlier fit; say which fit with --from.")
    if sorted_dir is None and labels is None and earlier is None:
        raise UserError("Name the folder of your sorted photos, which holds one folder per class.")
    before_told = [label for label in (*old, *named) if label.content not in told]
    now = [label for label in told.values() if label.name != NONE]
    labeled_files, classes = list_sorted(None if sorted_dir is None else user_path(sorted_dir), before_told, now)
    labeled_files.grouped.update(label.file for label in named)
    none_files = list_none(None if none is None else user_path(none), outside, labeled_files.nones)
    pile_files = list_pile(None if pile_dir is None else user_path(pile_dir), labeled_files.guesses)
    if before is not None and (gone := _gone(before, len(pile_files.files))):
        say(gone)
    test_files = Listed() if test is None else list_test(user_path(test), classes)
    say(what_there_is(labeled_files, classes, pile_files, test_files, none_files))
    if swapped(labeled_files, pile_files):
        again = shlex.join(["osp", "fit", str(pile_dir), str(sorted_dir)])
        say(f"There are few photos in the pile. Did you swap the folders? Then: {printable(again)}")
    network = backbone if isinstance(backbone, Backbone) else _open(backbone or "lite0", asked is not None)
    say(
        f"Looking at them with {network.name}, pretrained and frozen, at {network.size}x{network.size} pixels. What "
        "it sees is computed once and kept in the cache: stopping loses nothing."
    )
    listed = (labeled_files, classes, pile_files, test_files, none_files)
    photos = read(*listed, network, progress)
    for note in photos.notes:
        say(note)
    for number in np.flatnonzero(photos.counts == 1):
        say(f"The class {classes[number]!r} has one photo: it is learned, but nothing can be said of its accuracy.")
    if not len(photos.pile_use):
        why = no_pile(pile_dir, len(pile_files.files), _all_sorted(photos))
        say(f"{why} The classifier learns from the labels alone.")
    looked = time.monotonic()
    labeled, targets = photos.labeled.rows(photos.use), photos.labels[photos.use]
    pile = Rows(photos.pile, photos.pile_use)
    keys, then = np.array(photos.labeled.keys)[photos.use], (before or {}).get("grouped") or []
    grouped = photos.grouped[photos.use] | np.isin(keys, then)
    earlier_asked = (before or {}).get("asked") or {}
    person = labels is not None or bool(earlier_asked.get("labels") or earlier_asked.get("person"))
    fit_on = partial(
        fit_instant, labeled, targets, class_names=classes, seed=seed, asked_person=person, grouped=grouped
    )
    alone = fit_on(pile[:0])
    instant = fit_on(pile, none=photos.none.rows()) if len(pile) else alone
    if len(photos.none) and instant.asked is None:
        say(f"Photos of none of the classes teach only with a pile of {LEAST_PILE} photos or more.")
    answers, kept = {ALONE: alone}, ALONE
    if len(pile):
        kept = better(alone, instant)
        answers |= {ALONE: better_of(alone, instant) if kept == ALONE else alone, BOTH: instant}
    now_right = answers[kept].estimate
    say(f"Instant answer, {time.monotonic() - looked:.1f} s after the features: {in_words(now_right)}.")
    if before is not None and (then_right := before["estimates"].get(answer_of(before))) is not None:
        fell = now_right is not None and now_right.accuracy < then_right["accuracy"]
        say(then_and_now(then_right["accuracy"], len(old), len(targets), tuple(before["classes"]), classes, fell))
    if len(pile):
        say(pile_or_not(alone.estimate, instant.estimate, kept == ALONE))
    if method != "instant":
        from osp.photos.learning import improve_on

        learned, won = improve_on(instant, photos, network, method, seed, person, progress)
        if learned is None:
            say(f"{method} was not tried: it needs a pile, and a class with two photos.")
        else:
            trained = f"{method} from there"
            verdict = f"no better than {kept} by cross-validation, so that is kept"
            if won is learned and _balanced(learned) > _balanced(answers[kept]):
                kept, verdict = trained, "better, and kept"
            answers[trained] = learned
            say(f"Trained by {method} from there: {in_words(learned.estimate)}. It is {verdict}.")
    best, groups = group_pile(answers[kept], pile)
    about = about_threshold(len(best.id_scores), len(best.pile_scores))
    say(about if best.cut is None else about_cut(best, best.cut, len(photos.none)))
    if reaching := [name for number, name in enumerate(classes) if grouped[targets == number].all()]:
        say(about_groups(reaching))
    model = PhotoModel(best, network)
    result = {
        "kind": "photos",
        "version": __version__,
        "sorted": None if sorted_dir is None else os.path.abspath(user_path(sorted_dir)),
        "sorted_before": sorted_before(before, sorted_dir),
        "pile": None if pile_dir is None else os.path.abspath(user_path(pile_dir)),
        "backbone": network.name,
        "asked": {
            "method": method,
            "seed": seed,
            "test": None if test is None else os.path.abspath(user_path(test)),
            "from": None if earlier is None else os.path.abspath(user_path(earlier)),
            "name": list(name),
            "labels": None if labels is None else os.path.abspath(user_path(labels)),
            "none": None if none is None else os.path.abspath(user_path(none)),
            "person": person,
        },
        "answer": method if kept not in (ALONE, BOTH) else "instant",
        "kept": kept,
        "classes": dict(zip(classes, map(int, photos.counts), strict=True)),
        "none_of_them": len(photos.none),
        "grouped": keys[grouped].tolist(),
        "estimates": {each: asdict(said.estimate) if said.estimate else None for each, said in answers.items()},
        "test": {each: _tested(answer, photos) for each, answer in answers.items()} if len(photos.test) else None,
        "groups": described(groups, [photos.pile.files[row] for row in photos.pile_use]),
    }
    write_fit(folder, model, photos, result, started)
    return Run(RunFolder(folder), result, open_model=lambda _: model)


def _open(name: str, asked: bool) -> Backbone:
    """The backbone of this name; one that only the folder of an earlier fit names is never fetched."""
    try:
        return open_backbone(name, fetch=asked)
    except UserError as error:
        raise error if asked else UserError(f"--from looks at photos with {printable(name)}. {error}") from None


def _gone(before: dict[str, Any], now: int) -> str:
    """A sentence where much of the pile of an earlier fit is no longer there."""
    then = before["pile_photos"]["files"] if isinstance(before.get("pile_photos"), dict) else 0
    if 4 * now >= 3 * then:
        return ""
    return (
        f"The pile {before.get('pile')} had {then:,} photos in the earlier fit, and there are {now:,} now. If osp sort "
        "has moved them, name the folder that they were sorted into as the pile."
    )


def _all_sorted(photos: Photographs) -> bool:
    """Whether every photo of the pile is one of the sorted ones."""
    twins = {row for group in photos.duplicates.in_both for row in group.pile}
    return not photos.unreadable_pile and len(twins) == len(photos.pile)


def sorted_before(before: Mapping[str, Any] | None, sorted_dir: Path | str | None) -> list[str] | None:
    """The folders of sorted photos that earlier fits of the chain were given; None where not all of them are known."""
    if before is None:
        return []
    known = before.get("sorted_before")
    if known is None and (before.get("asked") or {}).get("from") is not None:
        return None
    now = None if sorted_dir is None else os.path.abspath(user_path(sorted_dir))
    return sorted({*(known or ()), *([before["sorted"]] if before.get("sorted") else ())} - {now})


def better(alone: Instant, both: Instant) -> str:
    """The name of the one with the larger cross-validated accuracy, all classes counted alike.

    Where they are equal, or nothing can be held out, it is labels and pile: classes and OOD score then use the same
    features.
    """
    if alone.estimate is None or both.estimate is None:
        return BOTH
    return ALONE if _balanced(alone) > _balanced(both) else BOTH


def better_of(alone: Instant, both: Instant) -> Instant:
    """Classes by the better of the two, OOD scores by the pile."""
    return both.with_classes_of(alone) if better(alone, both) == ALONE else both


def _balanced(answer: Instant) -> float:
    return -1.0 if answer.estimate is None else answer.estimate.balanced_accuracy


def _tested(instant: Instant, photos: Photographs) -> dict[str, Any]:
    """Figures on the test photos."""
    probabilities, scores = instant.answer(photos.test.rows())
    return tested(probabilities.argmax(axis=1), photos.test_labels, scores, instant.threshold())


# What it tells the user while it works, in sentences


def what_there_is(labeled: Listed, classes: Sequence[str], pile: Listed, test: Listed, none: Listed) -> str:
    counts = np.bincount(labeled.labels, minlength=len(classes))
    listed = ", ".join(f"{printable(name)} {count}" for name, count in zip(classes, counts, strict=True))
    tests = f", {len(test.files):,} for testing" if test.files else ""
    unsorted = f", {len(pile.files):,} in the pile" if pile.files else ""
    others = f", {len(none.files):,} of none of them" if none.files else ""
    return f"{len(labeled.files):,} sorted photos ({listed}){others}{unsorted}{tests}."


def swapped(labeled: Listed, pile: Listed) -> bool:
    """Whether the pile looks like the sorted photos: it is the smaller one, and all of it lies in a few folders."""
    folders = Counter(os.path.dirname(file) for file in pile.files)
    deep = len({os.path.dirname(folder) for folder in folders}) == 1 and len(folders) > 1
    return deep and 2 * len(pile.files) < len(labeled.files)


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


def then_and_now(
    accuracy: float, old: int, new: int, before: Sequence[str], now: Sequence[str], fell: bool = False
) -> str:
    """The accuracy of an earlier fit, and whether it compares."""
    text = f"The earlier fit, of {old} labels: accuracy {accuracy:.1f} %; now {new} labels."
    if set(before) == set(now):
        return text + (ONLY_MISTAKES if new > old and fell else "")
    what = f"{len(before)} classes then, {len(now)} now" if len(before) != len(now) else "Other classes now than then"
    return f"{text} {what}: the figures cannot be compared."


def in_words(estimate: Estimate | None) -> str:
    """The accuracy with what it rests on."""
    if estimate is None:
        return "its accuracy is unknown, for every class has one photo"
    few = "; few photos, so a wide interval" if estimate.images < FEW else ""
    return (
        f"accuracy {estimate.accuracy:.1f} % ({estimate.low:.0f} to {estimate.high:.0f}), {estimate.correct} of "
        f"{estimate.images} photos, each tested with a model that had not seen it{few}"
    )


def pile_or_not(alone: Estimate | None, both: Estimate | None, kept_alone: bool) -> str:
    """Which of the two is kept for the classes, and why."""
    if alone is None or both is None:
        return "Kept: labels and pile. With one photo per class it cannot be compared with labels alone."
    figures = f"{alone.balanced_accuracy:.1f} % without the pile, {both.balanced_accuracy:.1f} % with it"
    if kept_alone:
        return (
            f"The pile does not help to separate the classes here: {figures}, averaged over classes. Kept: "
            "labels alone. The pile still says what is unknown."
        )
    if both.balanced_accuracy == alone.balanced_accuracy:
        share = f"{both.balanced_accuracy:.1f} % both ways"
        return f"Kept: labels and pile, which made no difference for the classes ({share})."
    return f"Kept: labels and pile ({figures}, averaged over classes)."


def about_groups(classes: Sequence[str]) -> str:
    """What is not known of classes that were named by group alone.

    >>> print(about_groups(["heron"]))
    'heron' was named by group alone: more of its photos may be called unknown. Sort some by hand, or say --accept 0.99.
    """
    names = " and ".join(repr(printable(name)) for name in classes)
    was, its = ("was", "its") if len(classes) == 1 else ("were", "their")
    return (
        f"{names} {was} named by group alone: more of {its} photos may be called unknown. Sort some by hand, or say "
        "--accept 0.99."
    )


def about_cut(answer: Instant, cut: float, none: int) -> str:
    """What the OOD threshold rests on where a person has said of photos that they are none of the classes."""
    held_out, weights = len(answer.id_scores), answer.id_weights
    count = "1 photo" if none == 1 else f"{none:,} photos"
    text = f"Unknown is what looks more like the {count} of none of your classes than like a class."
    if not held_out:
        return text
    kept = 100 * weights[answer.id_scores <= cut].sum() / weights.sum()
    few = ": few, so take it as rough" if held_out < FEW else ""
    return f"{text} That keeps {kept:.0f} % of {held_out} sorted photos held out{few}."


def about_threshold(held_out: int, pile: int) -> str:
    """What the OOD threshold rests on, and so how far it can be trusted."""
    if held_out:
        few = ": few, so take it as rough" if held_out < FEW else ""
        return f"The OOD threshold is set to let through 95 % of the known classes, by {held_out} photos held out{few}."
    if pile < 2:
        return "There is no OOD threshold: with one photo per class and no pile nothing can be called unknown."
    return (
        "The OOD threshold is a guess from the pile: with one photo per class none can be held out, and it may lose "
        "far more than 5 % of the known classes (9 to 27 % in tests of ours) and let in many strangers. A second photo "
        "per class fixes that."
    )
