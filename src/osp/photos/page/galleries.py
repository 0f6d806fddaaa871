"""Which photos of a fit are worth a look, by what its tables say."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from osp.errors import printable
from osp.photos.page.reading import FittedRun, Said
from osp.report import gallery
from osp.report.gallery import Gallery, Shot, both_ends, percent, taken_for

MOST, MOST_BY_SCORE = 24, 16

Photos = list[Gallery[str]]
"""Each found by its file."""


def by_class(run: FittedRun) -> Photos:
    """For each class the photos of the pile that it is surest and least sure of."""
    each = 8 if len(run.names) <= 8 else 6 if len(run.names) <= 30 else 3
    found = []
    for number, name in enumerate(run.shown_names):
        members = [run.pile[row] for row in run.counted if run.pile[row].label == number and run.pile[row].inside]
        members.sort(key=lambda said: (-said.probability, said.score))
        surest, unsure = both_ends(members, each)
        parts = [
            (title, [Shot(said.file, number, percent(said.probability)) for said in some])
            for title, some in (("surest", surest), ("least sure", unsure))
        ]
        count = f"{len(members):,} photos of the pile look like it" if members else "no photo of the pile looks like it"
        found.append(Gallery(name, [], count, number, [part for part in parts if part[1]]))
    return found


def by_score(run: FittedRun) -> Photos:
    """The most and the least foreign photos of the pile."""
    rows = sorted((run.pile[row] for row in run.counted), key=lambda said: said.score)
    names, limit = run.shown_names, run.threshold

    def shot(said: Said) -> Shot[str]:
        return Shot(said.file, said.label, f"{said.score:.2f} ({names[said.label]}?)", not said.inside)

    aside = "" if limit is None else f" Above {limit:.2f}, in a dashed frame, a photo counts as foreign."
    return gallery.by_score(rows, MOST_BY_SCORE, shot, f"Photos of the pile by OOD score.{aside}")


def to_check(run: FittedRun) -> Photos:
    """Labels that look wrong, and mistakes, the surest first."""
    number = {name: place for place, name in enumerate(run.names)}
    doubts = [
        Shot(doubt.file, number.get(doubt.label, 0), f"{printable(doubt.label)}: {printable(doubt.looks_like)}?")
        for doubt in run.doubts[:MOST]
    ]
    why = "Sorted photos of which none of the nearest has the same label. Right or wrong? Moving one corrects it."
    return [Gallery("Labels that look wrong", doubts, why), *_held_out_mistakes(run), *_test_mistakes(run)]


def _held_out_mistakes(run: FittedRun) -> Photos:
    chances, names = run.held_out, run.shown_names
    if chances is None:
        return []
    held = np.flatnonzero(chances.sum(axis=1) > 0)
    wrong = held[chances[held].argmax(axis=1) != run.labels[held]]
    order = wrong[np.argsort(-chances[wrong].max(axis=1), kind="stable")][:MOST]
    shots = [
        Shot(
            run.labeled_files[row],
            int(run.labels[row]),
            taken_for(names[run.labels[row]], names[chances[row].argmax()], chances[row].max()),
        )
        for row in order
    ]
    return [Gallery("Mistakes, held out", shots, f"{len(wrong):,} of {len(held):,} sorted photos, each held out once.")]


def _test_mistakes(run: FittedRun) -> Photos:
    names = run.shown_names
    known = [said for said in run.test if said.truth >= 0]
    wrong = sorted((said for said in known if said.label != said.truth), key=lambda said: -said.probability)
    missed = sorted((said for said in run.test if said.truth < 0 and said.inside), key=lambda said: said.score)
    shots = [
        Shot(said.file, said.truth, taken_for(names[said.truth], names[said.label], said.probability))
        for said in wrong[:MOST]
    ]
    let_in = [Shot(said.file, said.label, f"{names[said.label]}? {said.score:.2f}", True) for said in missed[:MOST]]
    foreign = sum(said.truth < 0 for said in run.test)
    return [
        Gallery("Mistakes, test photos", shots, f"{len(wrong):,} of {len(known):,}; the surest first."),
        Gallery(
            "Foreign test photos that got in",
            let_in,
            f"{len(missed):,} of {foreign:,}; the least foreign first. Their folder is named like none of the classes.",
        ),
    ]


def disagreements(run: FittedRun, other: FittedRun, name: str) -> Photos:
    """Photos of the pile of which two runs say different things: of each pair of answers in turn, the surest of this
    run first."""
    theirs = {said.file: other.names[said.label] if said.inside else None for said in other.pile}
    kinds: dict[tuple[str | None, str | None], list[Shot[str]]] = {}
    for said in sorted((run.pile[row] for row in run.counted), key=lambda each: -each.probability):
        own = run.names[said.label] if said.inside else None
        if said.file in theirs and theirs[said.file] != own:
            pair = own, theirs[said.file]
            here, there = (printable("foreign" if each is None else each) for each in pair)
            shot = Shot(said.file, said.label, f"{here}; {name}: {there}", not said.inside)
            kinds.setdefault(pair, []).append(shot)
    found = [shot for several in zip_longest(*kinds.values()) for shot in several if shot is not None]
    shown = f"; {MOST} of them shown, of each kind of disagreement in turn" if len(found) > MOST else ""
    return [Gallery("The two runs disagree", found[:MOST], f"{len(found):,} photos of the pile{shown}.")]
