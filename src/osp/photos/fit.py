"""`osp.fit`: from a folder of sorted photographs and a pile of others to a classifier that also says what is foreign.

Read `fit` from top to bottom. The run folder appears whole, at the end; until then only the feature cache grows, so
that a fit that was stopped goes on where it was when it is started again.

    photos.safetensors, photos.json   the model, for `osp predict` and `osp sort`
    pile.csv                          class, probability, OOD score and decision of every photo of the pile
    labels.json                       the sorted photos, with their classes and contents
    doubts.csv                        labels that look wrong
    test.csv                          the same of every test photo, with its true class
    sample.npz                        features of some photos of the pile, for the map of the page
    duplicates.csv                    photos that are there several times
    left-out.csv                      files that were not used, with the reason
    result.json                       all figures
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from osp.errors import UserError, user_path
from osp.evaluate.metrics import detection
from osp.files import write_arrays, write_text
from osp.methods.registry import get
from osp.nets.pretrained import Backbone
from osp.photos.backbones import open_backbone
from osp.photos.doubts import wrong_labels
from osp.photos.estimates import Estimate, wilson
from osp.photos.features import Features, Progress, compute
from osp.photos.instant import Instant, fit_instant
from osp.photos.model import FACTS, PhotoModel
from osp.photos.reading import Label, Listed, Photographs, list_pile, list_sorted, list_test, read
from osp.photos.sorting import defused
from osp.version import __version__

PILE, LABELS, DOUBTS, TWINS, LEFT_OUT, RESULT, TEST, SAMPLE = (
    "pile.csv",
    "labels.json",
    "doubts.csv",
    "duplicates.csv",
    "left-out.csv",
    "result.json",
    "test.csv",
    "sample.npz",
)
SAMPLED = 1000
"""Photos of the pile whose features are kept beside the model, which has too many of them for a map."""
FEW = 30
"""With fewer held-out images than this, the interval is said to be wide."""


@dataclass(frozen=True)
class Fit:
    """A finished fit."""

    path: Path
    result: dict[str, Any]
    model: PhotoModel = field(repr=False)


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
) -> Fit:
    """Fit a classifier on sorted photos (one folder per class) and a pile of others, in the new folder `out`.

    `method` names a method of `osp.methods` that trains on from the instant answer; the better of both is kept. Every
    label teaches; figures come from cross-validation, and from the folder `test` where there is one. `earlier` is
    the folder of a fit to go on from: its labels count beside those in `sorted_dir`, which win where they differ, and
    its pile and backbone are used again where none is given. `say` is told what is done and why, `progress` how far
    the features are.
    """
    started = time.monotonic()
    folder = user_path(out)
    check_free(folder)
    if seed < 0:
        raise UserError(f"seed={seed}: a whole number from 0 on.")
    if method != "instant":
        get(method).check_shape((1,))  # an unknown one, or one that needs pixels, is refused before any work
    before = None if earlier is None else result_of(user_path(earlier))
    old = [] if earlier is None else labels_of(user_path(earlier))
    if before is not None:
        pile_dir, backbone = pile_dir or before["pile"], backbone or before["backbone"]
    labeled_files, classes = list_sorted(user_path(sorted_dir), old)
    pile_files = list_pile(None if pile_dir is None else user_path(pile_dir))
    test_files = Listed() if test is None else list_test(user_path(test), classes)
    say(_what_there_is(labeled_files, classes, pile_files, test_files))
    network = backbone if isinstance(backbone, Backbone) else open_backbone(backbone or "lite0")
    say(
        f"Looking at them with {network.name}, pretrained and frozen, at {network.size}x{network.size} pixels: with "
        "few labels its features teach more than pixels. They are computed once and kept in the cache."
    )
    photos = read(labeled_files, classes, pile_files, test_files, network, _with_time_left(progress, say))
    for note in photos.notes:
        say(note)
    for number in np.flatnonzero(photos.counts == 1):
        say(f"The class {classes[number]!r} has one photo: it is learned, but nothing can be said of its accuracy.")
    if not len(photos.pile_use):
        say("There is no pile: the classifier learns from the labels alone.")
    looked = time.monotonic()
    labeled, labels = photos.labeled.rows(photos.use), photos.labels[photos.use]
    pile = photos.pile.rows(photos.pile_use)
    alone = fit_instant(labeled, labels, pile[:0], classes, seed)
    instant = fit_instant(labeled, labels, pile, classes, seed) if len(pile) else alone
    say(f"Instant answer, {time.monotonic() - looked:.1f} s after the features: {in_words(instant.estimate)}.")
    if instant is not alone and (sentence := without_gain(alone.estimate, instant.estimate)):
        say(sentence)
    if before is not None and (then := list(before["estimates"].values())[-1]) is not None:
        say(f"The earlier fit, of {len(old)} labels: accuracy {then['accuracy']:.1f} %; now {len(labels)} labels.")
    answers = {"labels alone": alone, "labels and pile": instant} if len(pile) else {"labels alone": alone}
    kept, best = "instant", instant
    if method != "instant":
        learned, best = _trained(instant, photos, network, method, seed, _with_time_left(progress, say), progress)
        if learned is None:
            say(f"{method} was not tried: it needs a pile, and a class with two photos.")
        else:
            answers[f"{method} from there"] = learned
            kept = "instant" if best is instant else method
            verdict = "no better by cross-validation, so that one is kept" if best is instant else "better, and kept"
            say(f"Trained by {method} from there: {in_words(learned.estimate)}. It is {verdict}.")
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
        "answer": kept,
        "classes": dict(zip(classes, map(int, photos.counts), strict=True)),
        "estimates": {name: asdict(each.estimate) if each.estimate else None for name, each in answers.items()},
        "test": {name: tested(each, photos) for name, each in answers.items()} if len(photos.test) else None,
    }
    _write(folder, model, photos, result, started)
    return Fit(folder, result, model)


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


def _what_there_is(labeled: Listed, classes: Sequence[str], pile: Listed, test: Listed) -> str:
    counts = np.bincount(labeled.labels, minlength=len(classes))
    listed = ", ".join(f"{name} {count}" for name, count in zip(classes, counts, strict=True))
    tests = f", {len(test.files):,} for testing" if test.files else ""
    return f"{len(labeled.files):,} sorted photos ({listed}), {len(pile.files):,} in the pile{tests}."


def _with_time_left(progress: Progress | None, say: Callable[[str], None]) -> Progress:
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
            say(f"{total:,} photos are new; about {_duration(left)} to go. Stopping loses nothing: start it again.")
        if progress is not None:
            progress(done, total, text)

    return report


def _duration(seconds: float) -> str:
    """
    >>> _duration(7), _duration(200)
    ('7 seconds', '3 minutes')
    """
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def in_words(estimate: Estimate | None) -> str:
    """The accuracy with what it rests on."""
    if estimate is None:
        return "its accuracy is unknown, for every class has one photo"
    few = "; few photos, so a wide interval" if estimate.images < FEW else ""
    return (
        f"accuracy {estimate.accuracy:.1f} % ({estimate.low:.0f} to {estimate.high:.0f}), {estimate.correct} of "
        f"{estimate.images} photos held out in turn{few}"
    )


def without_gain(alone: Estimate | None, both: Estimate | None) -> str:
    """A sentence where cross-validation finds the classes no better told apart with the pile; else nothing."""
    if alone is None or both is None or both.balanced_accuracy > alone.balanced_accuracy:
        return ""
    return (
        f"The pile does not help to tell the classes apart here: {alone.balanced_accuracy:.1f} % without it, "
        f"{both.balanced_accuracy:.1f} % with it, all classes counted alike. It still shows what is foreign."
    )


def tested(instant: Instant, photos: Photographs) -> dict[str, Any]:
    """Figures on the test photos: accuracy of those of known classes; how well others are told from them."""
    features = photos.test.rows()
    known = photos.test_labels >= 0
    right = instant.predict_proba(features[known]).argmax(axis=1) == photos.test_labels[known]
    truth = photos.test_labels[known]
    low, high = wilson(int(right.sum()), len(right))
    scores, limit = instant.ood_score(features), instant.threshold()
    found: dict[str, Any] = {
        "images": len(right),
        "accuracy": float(right.mean() * 100),
        "low": low * 100,
        "high": high * 100,
        "balanced_accuracy": float(np.mean([right[truth == c].mean() for c in np.unique(truth)]) * 100),
        "known_accepted": float((scores[known] <= limit).mean() * 100),
    }
    if not known.all():
        found["foreign"] = int((~known).sum())
        found["foreign_accepted"] = float((scores[~known] <= limit).mean() * 100)
        found["auroc"] = detection(scores[known], scores[~known])["auroc"]
    return found


def decide(instant: Instant, features: Features, accept: float = 0.95) -> Iterator[tuple[str, float, float, bool]]:
    """Class, probability, OOD score and whether it belongs, for each photo in order; flat in memory."""
    limit = instant.threshold(accept)
    for start in range(0, len(features), 1024):
        rows = features.rows(slice(start, start + 1024))
        probabilities, scores = instant.predict_proba(rows), instant.ood_score(rows)
        for chances, score in zip(probabilities, scores, strict=True):
            best = int(chances.argmax())
            yield instant.class_names[best], float(chances[best]), float(score), bool(score <= limit)


def _write(folder: Path, model: PhotoModel, photos: Photographs, result: dict[str, Any], started: float) -> None:
    """The whole run folder, which gets its name last."""
    instant, labeled, pile = model.instant, photos.labeled, photos.pile
    with _new_folder(folder) as partial:
        model.save(partial)
        decided = list(decide(instant, pile))
        twins = _twins(photos)
        rows = [
            [file, name, f"{probability:.4f}", f"{score:.4f}", "in" if inside else "out", twins.get(file, "")]
            for file, (name, probability, score, inside) in zip(pile.files, decided, strict=True)
        ]
        rows += [[file, "", "", "", "unreadable", reason] for file, reason in photos.unreadable_pile]
        write_table(partial / PILE, ("file", "class", "probability", "ood_score", "decision", "note"), rows)
        taught = [[labeled.files[i], photos.classes[photos.labels[i]], labeled.keys[i]] for i in photos.use]
        write_text(partial / LABELS, json.dumps(taught, indent=0) + "\n")
        wrong = wrong_labels(instant)
        suspects = [(labeled.files[photos.use[each.position]], each) for each in wrong]
        write_table(
            partial / DOUBTS,
            ("file", "class", "looks_like", "margin"),
            [
                [file, photos.classes[each.label], photos.classes[each.suggestion], f"{each.margin:.3f}"]
                for file, each in suspects
            ],
        )
        groups = photos.duplicates.groups
        write_table(
            partial / TWINS,
            ("group", "exact", "where", "file"),
            [
                [str(number), "yes" if group.exact else "nearly", where, features.files[i]]
                for number, group in enumerate(groups, 1)
                for where, features, members in (("sorted", labeled, group.labeled), ("pile", pile, group.pile))
                for i in members
            ],
        )
        write_table(partial / LEFT_OUT, ("file", "reason"), photos.left_out)
        if len(photos.test):
            write_table(
                partial / TEST,
                ("file", "truth", "class", "probability", "ood_score", "decision"),
                [
                    [
                        file,
                        photos.classes[truth] if truth >= 0 else "",
                        name,
                        f"{p:.4f}",
                        f"{score:.4f}",
                        "in" if inside else "out",
                    ]
                    for file, truth, (name, p, score, inside) in zip(
                        photos.test.files, photos.test_labels, decide(instant, photos.test), strict=True
                    )
                ],
            )
        once = photos.pile_use
        some = once[np.linspace(0, len(once) - 1, min(SAMPLED, len(once))).astype(np.int64)] if len(once) else once
        write_arrays(partial / SAMPLE, {"rows": some, "features": pile.rows(some)})
        inside = np.array([each[3] for each in decided], bool)[once]
        per_class = dict.fromkeys(photos.classes, 0)
        for i in once[inside]:
            per_class[decided[i][0]] += 1
        scores = np.array([each[2] for each in decided], np.float32)[once]
        result["pile_photos"] = {
            "files": len(pile),
            "counted": len(once),
            "in": int(inside.sum()),
            "out": int((~inside).sum()),
            "per_class": per_class,
            "share": instant.share(scores) if len(scores) else None,
        }
        limit = instant.threshold()
        result["threshold"] = limit if math.isfinite(limit) else None
        result["suspected_labels"] = len(wrong)
        result["duplicates"] = len(groups)
        result["in_both"] = len(photos.duplicates.in_both)
        result["left_out"] = len(photos.left_out)
        result["seconds"] = round(time.monotonic() - started, 1)
        write_text(partial / RESULT, json.dumps(result, indent=2) + "\n")


def _twins(photos: Photographs) -> dict[str, str]:
    """What is said in the table of each pile photo that is there several times."""
    notes: dict[str, str] = {}
    for group in photos.duplicates.groups:
        if group.labeled:
            first = group.labeled[0]
            sentence = f"also sorted, as {photos.classes[photos.labels[first]]}: {photos.labeled.files[first]}"
            notes |= {photos.pile.files[i]: sentence for i in group.pile}
        else:
            first = group.pile[0]
            notes |= {photos.pile.files[i]: f"the same photo as {photos.pile.files[first]}" for i in group.pile[1:]}
    return notes


def write_table(path: Path, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table that spreadsheets read, and in which no name is taken for a formula."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(headings)
    table.writerows([[defused(cell) for cell in row] for row in rows])
    write_text(path, text.getvalue().encode("utf-8", "replace").decode())


def labels_of(run: Path) -> list[Label]:
    """The photos that a fit has learned from."""
    path = run / LABELS
    try:
        return [Label(*map(str, row)) for row in json.loads(path.read_text("utf-8"))]
    except FileNotFoundError:
        raise UserError(f"{run} is no folder of a fit: {LABELS} is missing.") from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}). Run the fit again.") from None


def result_of(run: Path) -> dict[str, Any]:
    """The figures of a fit."""
    path = run / RESULT
    try:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict) or found.get("kind") != "photos" or not isinstance(found.get("backbone"), str):
            raise ValueError("it holds no figures of a fit")
    except FileNotFoundError:
        raise UserError(f"{run} is no folder of a fit: {RESULT} is missing.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}). Run the fit again.") from None
    return found


def check_free(folder: Path) -> None:
    """Refuse a folder that is in use or cannot be made, before any work is done."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder} is a file; name a new folder.")
        if folder.is_dir() and any(folder.iterdir()):
            fitted = f" It holds a fit; to go on from it, add --from {folder}." if (folder / FACTS).exists() else ""
            raise UserError(f"The folder {folder} is not empty; name a new one with --out.{fitted}")
        parent = next(each for each in [folder, *folder.absolute().parents] if each.exists())
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror or error}. Choose another --out.") from None
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {folder}: cannot write into {parent}. Choose another --out.")


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the final one that takes its name at the end, or is gone if something fails."""
    folder = folder.absolute()
    partial: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        yield partial
        if folder.is_dir():
            folder.rmdir()  # empty, or somebody else has begun to write there
        shape = os.umask(0)
        os.umask(shape)
        partial.chmod(0o777 & ~shape)
        os.rename(partial, folder)
        partial = None
    except OSError as error:
        raise UserError(f"The results cannot be written to {folder}: {error.strerror or error}.") from None
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
