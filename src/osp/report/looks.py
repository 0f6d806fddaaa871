"""Rows of Grad-CAM pictures for a run and, beside it, a baseline (the paper's Figure 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from osp.engine.data import Data, open_again
from osp.errors import UserError, printable
from osp.models.gradcam import ClassMaps, class_maps, overlay, partner_maps
from osp.models.trained import Predictor, load_predictor
from osp.runs.run import Run

Picture = np.ndarray
"""uint8 H×W×3."""


@dataclass(frozen=True)
class Looks:
    """Pictures of the same images, a list per row; None where an image has no partner in the bank."""

    images: list[Picture]
    targets: np.ndarray
    names: tuple[str, ...]
    own: list[Picture]
    own_said: list[str]
    baseline: list[Picture] | None = None
    baseline_said: list[str] | None = None
    partners: list[Picture | None] | None = None
    partner_images: list[Picture | None] | None = None


def look(run: Run, baseline: Run | None = None, most: int = 8, data: Data | None = None) -> Looks:
    """Grad-CAM rows of the first test image of each class; UserError where images or models are gone."""
    data = data or open_again(run)
    rows, targets = first_of_each(data.split.test, data.split.test_targets, most)
    images = data.test.take(rows).numpy()
    model = load_model(run)
    own = class_maps(model, images)
    names = tuple(map(printable, model.class_names))
    found = Looks(
        images=[plain(image) for image in images],
        targets=targets,
        names=names,
        own=overlaid(images, own),
        own_said=said(own, names),
    )
    if baseline is not None:
        found = _with_baseline(found, model, baseline, images)
    if run.bank:
        found = _with_partners(found, run, data, model, own, images)
    return found


def _with_baseline(found: Looks, model: Predictor, baseline: Run, images: np.ndarray) -> Looks:
    other = load_model(baseline)
    if other.shape != model.shape or other.class_names != model.class_names:
        raise UserError(f"The run in {baseline.path} has other classes or images; compare runs on the same data.")
    maps = class_maps(other, images)
    return replace(found, baseline=overlaid(images, maps), baseline_said=said(maps, found.names))


def _with_partners(found: Looks, run: Run, data: Data, model: Predictor, own: ClassMaps, images: np.ndarray) -> Looks:
    partners = partner_maps(model, images, own, run.bank)
    theirs = data.train.take(data.split.unlabeled[partners.pool_rows]).numpy()
    there = partners.found
    return replace(
        found,
        partners=[overlay(*pair) if ok else None for *pair, ok in zip(images, partners.maps, there, strict=True)],
        partner_images=[plain(image) if ok else None for image, ok in zip(theirs, there, strict=True)],
    )


def load_model(run: Run) -> Predictor:
    """The run's model, which never runs code of its folder: a method file's own score is not needed here."""
    if not run.folder.model.exists():
        raise UserError(f"The run in {run.path} was kept without its model.")
    return load_predictor(run.path)


def first_of_each(rows: np.ndarray, targets: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first image of each of the first classes, and its class.

    >>> first_of_each(np.array([7, 8, 9]), np.array([1, 0, 1]), 8)
    (array([8, 7]), array([0, 1]))
    """
    classes, first = np.unique(targets, return_index=True)
    return rows[first[:most]], classes[:most]


def plain(image: np.ndarray) -> Picture:
    """C×H×W with one or three channels as H×W×3."""
    return np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0))


def overlaid(images: np.ndarray, found: ClassMaps) -> list[Picture]:
    return [overlay(image, seen) for image, seen in zip(images, found.maps, strict=True)]


def said(found: ClassMaps, names: tuple[str, ...]) -> list[str]:
    """`cat 93 %`."""
    pairs = zip(found.predicted, found.confidence, strict=True)
    return [f"{names[number]} {100 * confidence:.0f}\u00a0%" for number, confidence in pairs]
