"""The folder of a fit: written at the end, all at once, and read again.

photos.safetensors, photos.json   the model, for `osp predict` and `osp sort`
pile.csv                          class, probability, OOD score and decision of every photo of the pile
labels.json                       the sorted photos, with their classes and contents
none.json                         the same of photos that were said to show none of the classes
doubts.csv                        labels that look wrong
test.csv                          the same of every test photo, with its true class
sample.npz                        features of some photos of the pile, for the map of the page
duplicates.csv                    photos that are there several times
left-out.csv                      files that were not used, with the reason
result.json                       all figures
SHA256SUMS                        the checksum of each of these, as `sha256sum` writes and checks it
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.errors import UserError
from osp.evaluate.thresholds import ACCEPT
from osp.files import UMASK, flush_folder, read_plain, write_arrays, write_text
from osp.models.instant import Instant
from osp.models.model import Prediction, predictions
from osp.models.photo import PhotoModel, answer_of
from osp.photos.doubts import wrong_labels
from osp.photos.features import Features
from osp.photos.labels import BOOK, NONE, Label
from osp.photos.photographs import Photographs
from osp.photos.strangers import let_in
from osp.runs.fitted import (
    ARRAYS,
    DOUBTS,
    FACTS,
    LABELS,
    LEFT_OUT,
    NONES,
    PILE,
    RESULT,
    SAMPLE,
    TEST,
    TWINS,
)
from osp.runs.schema import read_rows
from osp.tables import write_table

SUMS = "SHA256SUMS"
FILES = (ARRAYS, FACTS, PILE, LABELS, NONES, DOUBTS, TWINS, LEFT_OUT, RESULT, TEST, SAMPLE)
_AT_ONCE = 1024
SAMPLED = 1000
"""Photos of the pile whose features are kept beside the model, which has too many of them for a map."""


def write_fit(folder: Path, model: PhotoModel, photos: Photographs, result: dict[str, Any], started: float) -> None:
    """The run folder, which gets its name last."""
    instant, labeled, pile = model.instant, photos.labeled, photos.pile
    with new_folder(folder) as partial:
        model.save(partial)
        decided = list(decide(instant, pile, none=photos.none.keys))
        twins = _twins(photos)
        rows = (
            [each.file, *_cells(each), twins.get(each.file, ""), each.group, f"{each.sure:.4f}"] for each in decided
        )
        unread = ([file, "", "", "", "unreadable", reason, "", ""] for file, reason in photos.unreadable_pile)
        columns = ("file", "class", "probability", "ood_score", "decision", "note", "group", "sure")
        write_table(partial / PILE, columns, itertools.chain(rows, unread))
        taught = [[labeled.files[i], photos.classes[photos.labels[i]], labeled.keys[i]] for i in photos.use]
        write_text(partial / LABELS, json.dumps(taught, indent=0) + "\n")
        if len(photos.none):
            said = [[file, NONE, key] for file, key in zip(photos.none.files, photos.none.keys, strict=True)]
            write_text(partial / NONES, json.dumps(said, indent=0) + "\n")
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
                    [each.file, photos.classes[truth] if truth >= 0 else "", *_cells(each)]
                    for truth, each in zip(photos.test_labels, decide(instant, photos.test), strict=True)
                ],
            )
        once = photos.pile_use
        some = once[np.linspace(0, len(once) - 1, min(SAMPLED, len(once))).astype(np.int64)] if len(once) else once
        write_arrays(partial / SAMPLE, {"rows": some, "features": pile.rows(some)})
        counted = [decided[i] for i in once]
        inside, belonging = sum(each.inside for each in counted), instant.belonging
        classes = let_in(counted, photos.classes)
        result["pile_photos"] = {
            "files": len(pile),
            "counted": len(counted),
            "in": inside,
            "out": len(counted) - inside,
            "per_class": {name: each.let_in for name, each in classes.items()},
            "share": instant.share(np.array([each.ood_score for each in counted])) if counted else None,
        }
        if belonging is not None:
            least, most = belonging.strangers(len(counted), inside)
            strangers = sum(each.strangers for each in classes.values())
            result["pile_photos"] |= {
                "share": belonging.share,
                "share_low": belonging.low,
                "share_high": belonging.high,
                "strangers_low": min(least, strangers),
                "strangers_high": max(most, strangers),
                "classes": {name: asdict(each) for name, each in classes.items()},
            }
        limit = instant.threshold()
        result["threshold"] = limit if math.isfinite(limit) else None
        if instant.cut is not None:
            result["cut"] = instant.cut
        result["threshold_photos"] = len(instant.id_scores)
        result["suspected_labels"] = len(wrong)
        result["duplicates"] = len(groups)
        result["in_both"] = len(photos.duplicates.in_both)
        result["left_out"] = len(photos.left_out)
        result["seconds"] = round(time.monotonic() - started, 1)
        write_text(partial / RESULT, json.dumps(result, indent=2) + "\n")
        sums = (f"{_checksum(partial / name)}  {name}\n" for name in FILES if (partial / name).exists())
        write_text(partial / SUMS, "".join(sums))


def decide(
    instant: Instant, features: Features, accept: float = ACCEPT, none: Collection[str] = (), every: bool = False
) -> Iterator[Prediction]:
    """What the instant answer says of each photo whose features are stored, in order; flat in memory.

    Those with these contents are unknown: a person said that they show `none` of the classes. With the probabilities of
    `every` class, or of the best alone.
    """
    limit, outside = instant.threshold(accept), set(none)
    for start in range(0, len(features), _AT_ONCE):
        rows = features.rows(slice(start, start + _AT_ONCE))
        said = answer_of(instant, rows, limit)
        found = predictions(features.files[start : start + _AT_ONCE], said, instant.class_names, every)
        for key, each in zip(features.keys[start : start + _AT_ONCE], found, strict=True):
            yield replace(each, inside=False) if key in outside else each


def _cells(said: Prediction) -> list[str]:
    """Class, probability, OOD score and decision, as tables have them."""
    return [said.label, f"{said.probability:.4f}", f"{said.ood_score:.4f}", "in" if said.inside else "out"]


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def altered(folder: Path) -> dict[str, str]:
    """The files of a fit that are not as it wrote them, and what is wrong with each; FileNotFoundError without sums."""
    lines = read_plain(folder / SUMS).decode("utf-8").splitlines()
    stated = dict(line.split("  ", 1)[::-1] for line in lines)
    if not {FACTS, ARRAYS, RESULT} <= set(stated) <= set(FILES):
        raise ValueError("it is damaged")
    found = {name: "missing" for name in stated if not (folder / name).is_file()}
    for name in FILES:
        if name not in found and (folder / name).is_file() and stated.get(name) != _checksum(folder / name):
            found[name] = "changed since the fit wrote it" if name in stated else "not written by the fit"
    return found


def _twins(photos: Photographs) -> dict[str, str]:
    """What is said in the table of each pile photo that is there several times."""
    outside = set(photos.none.keys)
    told = (file for file, key in zip(photos.pile.files, photos.pile.keys, strict=True) if key in outside)
    notes = dict.fromkeys(told, "you said: none of the classes")
    for group in photos.duplicates.groups:
        if group.labeled:
            first = group.labeled[0]
            sentence = f"also sorted, as {photos.classes[photos.labels[first]]}: {photos.labeled.files[first]}"
            own = {photos.labeled.files[i]: f"sorted, as {photos.classes[photos.labels[i]]}" for i in group.labeled}
            notes |= {file: own.get(file, sentence) for file in (photos.pile.files[i] for i in group.pile)}
        else:
            first = group.pile[0]
            same = {photos.pile.files[i]: f"the same photo as {photos.pile.files[first]}" for i in group.pile[1:]}
            notes = same | notes
    return notes


def nones_of(run: Path) -> list[Label]:
    """The photos that were said to show none of the classes of a fit."""
    return _labels(run / NONES) if (run / NONES).exists() else []


def labels_of(run: Path) -> list[Label]:
    """The photos that a fit has learned from."""
    return _labels(run / LABELS)


def _labels(path: Path) -> list[Label]:
    try:
        return [Label(*row) for row in read_rows(path, 3)]
    except FileNotFoundError:
        raise UserError(f"{path.parent} is no folder of a fit: {LABELS} is missing.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}). Run the fit again.") from None


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the final one that takes its name at the end, or is gone if something fails."""
    folder = folder.absolute()
    partial: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}.", suffix=".partial", dir=folder.parent))
        yield partial
        if (folder / BOOK).is_file():
            _move_into(partial, folder)
            return
        if folder.is_dir():
            folder.rmdir()  # empty, or somebody else has begun to write there
        partial.chmod(0o777 & ~UMASK)
        os.rename(partial, folder)
        partial = None
    except OSError as error:
        raise UserError(f"The results cannot be written to {folder}: {error.strerror or error}.") from None
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _move_into(partial: Path, folder: Path) -> None:
    """Put the files of a fit beside the labels that it was made from, in place of an earlier fit's.

    The facts go first and come last: killed in between, it is no fit, and no label is lost.
    """
    (folder / FACTS).unlink(missing_ok=True)
    for name in (*FILES, SUMS):
        if name != FACTS and not (partial / name).exists():
            (folder / name).unlink(missing_ok=True)
    for each in sorted(partial.iterdir(), key=lambda path: path.name == FACTS):
        os.replace(each, folder / each.name)
    flush_folder(folder)
