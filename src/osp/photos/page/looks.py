"""Rows of Grad-CAM pictures for a fit and, beside it, another one (the paper's Figure 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from osp.data.decode import Unreadable, decode
from osp.errors import UserError, printable
from osp.models.gradcam import overlay
from osp.models.photo import PhotoModel, load_model
from osp.photos.page.reading import FittedRun
from osp.report.looks import plain
from osp.report.template import picture_url

SIDE = 160


def look(run: FittedRun, other: FittedRun | None, name: str, most: int) -> list[dict[str, Any]]:
    """The photos, and what speaks for the class that each run gives them, the other one under its name; UserError where
    one is gone."""
    chosen = first_of_each(run, most)
    if not chosen:
        raise UserError("the photos are no longer where they were.")
    model = load_model(run.path)
    shown = [plain(decode(file, SIDE)) for file, _ in chosen]
    rows = [_row("photo", shown, [name for _, name in chosen])]
    rows.append(_maps("where it looks" if other is None else "this run", model, [file for file, _ in chosen]))
    if other is not None:
        rows.append(_maps(name, load_model(other.path), [file for file, _ in chosen]))
    return rows


def first_of_each(run: FittedRun, most: int) -> list[tuple[str, str]]:
    """A photo of each of the first classes and one or two foreign ones, with what is known of them.

    Test photos where there are any, else photos of the pile: of what it was taught it knows the answer by heart.
    """
    found: list[tuple[str, str]] = []
    names = run.shown_names
    for number in range(min(most - 2, len(names))):
        tested = [(said.file, names[number]) for said in run.test if said.truth == number]
        alike = sorted((run.pile[row] for row in run.counted if run.pile[row].label == number), key=lambda s: s.score)
        taught = [file for file, label in zip(run.labeled_files, run.labels, strict=True) if label == number]
        others = [*((said.file, "of the pile") for said in alike), *((file, names[number]) for file in taught)]
        found += [each for each in (tested + others)[:3] if _there(each[0])][:1]
    foreign = [said for said in run.test if said.truth < 0] or [run.pile[row] for row in run.counted]
    foreign = sorted((said for said in foreign if not said.inside), key=lambda said: -said.score)
    found += [(said.file, "foreign" if run.test else "of the pile") for said in foreign[:6] if _there(said.file)][:2]
    return found


def _there(file: str) -> bool:
    try:
        decode(file, 8)
    except (Unreadable, OSError, ValueError):
        return False
    return True


def _maps(name: str, model: PhotoModel, files: list[str]) -> dict[str, Any]:
    pixels = np.stack([decode(file, model.backbone.size) for file in files])
    found = model.maps(pixels)
    said = [
        f"{printable(model.class_names[number])} {100 * confidence:.0f}\u00a0%"
        for number, confidence in zip(found.predicted, found.confidence, strict=True)
    ]
    return _row(name, [overlay(image, seen) for image, seen in zip(pixels, found.maps, strict=True)], said)


def _row(name: str, images: list[np.ndarray], captions: list[str]) -> dict[str, Any]:
    cells = [
        {"image": picture_url(image, SIDE), "caption": caption} for image, caption in zip(images, captions, strict=True)
    ]
    return {"name": name, "cells": cells}
