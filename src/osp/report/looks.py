"""Rows of Grad-CAM pictures for a run and, beside it, a baseline (the paper's Figure 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from osp.errors import UserError, printable
from osp.models import load
from osp.models.gradcam import ClassMaps, overlay, partner_maps
from osp.plugins import trusted
from osp.recipe.code import files_in
from osp.report.album import Picture, plain
from osp.report.trained import TrainedView
from osp.report.view import View, percent
from osp.runs.run import Run

MOST = 8


@dataclass(frozen=True)
class Looks:
    """Pictures of the same images, a list per row; None where an image has no partner in the bank."""

    images: list[Picture]
    captions: list[str]
    own: list[Picture]
    own_said: list[str]
    baseline: list[Picture] | None = None
    baseline_said: list[str] | None = None
    partners: list[Picture | None] | None = None
    partner_images: list[Picture | None] | None = None


def look(view: View, other: View | None = None, most: int = MOST) -> Looks:
    """What speaks for the class that each run gives to some images; UserError where images or models are gone."""
    chosen = view.looked(most)
    model = model_of(view.run)
    pixels = chosen.pixels(model)
    own = model.maps(pixels)
    rows: dict[str, Any] = {}
    if other is not None:
        beside = model_of(other.run)
        theirs = chosen.pixels(beside)
        maps = beside.maps(theirs)
        rows |= {"baseline": overlaid(theirs, maps), "baseline_said": said(maps, beside.class_names)}
    if isinstance(view, TrainedView) and view.run.bank:
        rows |= _partners(view, model, own, pixels)
    return Looks(chosen.images, chosen.captions, overlaid(pixels, own), said(own, model.class_names), **rows)


def _partners(view: TrainedView, model: Any, own: ClassMaps, images: np.ndarray) -> dict[str, Any]:
    """Where the paired OOD feature of the bank is in each image, and the image that it came from."""
    data = view.album.data
    assert data is not None
    partners = partner_maps(model, images, own, view.run.bank)
    theirs = data.train.take(data.split.unlabeled[partners.pool_rows]).numpy()
    there = partners.found
    return {
        "partners": [overlay(*pair) if ok else None for *pair, ok in zip(images, partners.maps, there, strict=True)],
        "partner_images": [plain(image) if ok else None for image, ok in zip(theirs, there, strict=True)],
    }


def model_of(run: Run) -> Any:
    """The run's model, with those files of the user's own that were named: code of its folder is never run."""
    if run.decided is not None and not run.folder.model.exists():
        raise UserError(f"The run in {run.path} was kept without its model.")
    if run.open_model is not None:
        return run.model
    code = {} if run.decided is None else files_in(run.decided.model_dump())
    named = {key: name for key, name in code.items() if trusted(name)}
    return load(run.path, network=named.get("network"), method=named.get("method"), score=named.get("score"))


def overlaid(images: np.ndarray, found: ClassMaps) -> list[Picture]:
    return [overlay(image, seen) for image, seen in zip(images, found.maps, strict=True)]


def said(found: ClassMaps, names: tuple[str, ...]) -> list[str]:
    """`cat 93 %`."""
    pairs = zip(found.predicted, found.confidence, strict=True)
    return [f"{printable(names[number])} {percent(confidence)}" for number, confidence in pairs]
