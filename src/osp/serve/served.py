"""A model and the labeled photos beside it, asked about one uploaded image at a time: the same for a fit and a run."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.decode import MAX_PIXELS, Unreadable, decode
from osp.engine.data import open_again
from osp.errors import UserError, printable, user_path
from osp.files import read_plain
from osp.models import PhotoModel, Predictor, load
from osp.models.gradcam import overlay
from osp.models.model import group_name
from osp.photos.folder import labels_of
from osp.report.album import plain
from osp.report.html import data_url
from osp.runs.run import Run

LARGEST_FILE = 256 << 20
"""Bytes of a labeled photo that is shown."""
THUMBNAIL = 224
"""Side of the labeled photos that are shown."""

Decode = Callable[..., np.ndarray]
"""`osp.data.decode.decode`, or the process of a `Decoder`."""


Photos = Callable[[int], bytes | np.ndarray | None]
"""By number: the file of a labeled photo, or its pixels; None where it is not to be had."""


def file_photos(folder: Path, count: int) -> Photos:
    """The labeled photos of a fit, where they still are."""
    try:
        labels = labels_of(folder)
    except UserError:  # a model that was saved from Python
        labels = []

    def read(number: int) -> bytes | None:
        """The very photo that was learned from: a file with another content is not shown under its name."""
        if number >= count or len(labels) != count:
            return None
        try:
            content = read_plain(Path(labels[number].file), LARGEST_FILE, links=True)
        except (OSError, ValueError):
            return None
        return content if hashlib.blake2b(content, digest_size=16).hexdigest() == labels[number].content else None

    return read


def data_photos(folder: Path, rows: np.ndarray) -> Photos:
    """The labeled images of a trained run, where its data can be opened again."""
    try:
        data = open_again(Run.read(folder))
    except UserError:
        return lambda _: None
    return lambda number: data.train.take([int(rows[number])]).numpy()[0] if number < len(rows) else None


class Served:
    """What the server asks."""

    def __init__(self, model: Predictor | PhotoModel, folder: Path) -> None:
        self.model = model
        self.names = [printable(name) for name in model.class_names]
        self.known, self.known_labels = model.labeled()
        if isinstance(model, PhotoModel):
            self._photo = file_photos(folder, len(self.known))
        else:
            self._photo = data_photos(folder, model.labeled_rows())

    def __call__(
        self,
        content: bytes,
        accept: float,
        neighbors: int,
        explain: bool,
        most_pixels: int = MAX_PIXELS,
        decode: Decode = decode,
    ) -> dict[str, Any]:
        """What the model says of a file in memory, as JSON; `Unreadable` with the reason where it is no image."""
        pixels = decode(content, self.model.size, most_pixels)[None]
        said = self.model.answer(pixels, accept)
        chances, score = said.probabilities[0].tolist(), float(said.ood_score[0])
        best = int(said.classes[0])
        heatmap = self.heatmap(pixels) if explain else None
        return {
            "class": self.names[best],
            "probability": round(chances[best], 6),
            "sure": round(chances[best] if said.belongs is None else float(said.belongs[0]) * chances[best], 6),
            "probabilities": {name: round(p, 6) for name, p in zip(self.names, chances, strict=True)},
            "ood_score": round(score, 6),
            "threshold": round(said.threshold, 6) if math.isfinite(said.threshold) else None,
            "in": score <= said.threshold,
            "group": group_name(0 if said.groups is None or score <= said.threshold else int(said.groups[0])) or None,
            "neighbors": self._nearest(self.model.comparable(said.features)[0], neighbors),
            "heatmap": None if heatmap is None else data_url(heatmap, "image/jpeg"),
        }

    def show(self, number: int, decode: Decode = decode) -> np.ndarray | None:
        """A labeled photo as uint8 H×W×3; None where it is not to be had."""
        found = self._photo(number)
        try:
            return None if found is None else plain(decode(found, THUMBNAIL) if isinstance(found, bytes) else found)
        except Unreadable:
            return None

    def heatmap(self, pixels: np.ndarray) -> bytes | None:
        """A JPEG: the part of the image that the model sees, with Grad-CAM over it; None where there are no maps."""
        try:
            return jpeg(overlay(pixels[0], self.model.maps(pixels).maps[0]))
        except UserError:
            return None

    def warm_up(self) -> None:
        """Have everything loaded before the first question."""
        blank = np.zeros((1, 3, self.model.size, self.model.size), np.uint8)
        self.model.answer(blank)
        self.heatmap(blank)

    def about(self) -> dict[str, Any]:
        """What a page says of the model before any image."""
        limit, photos = self.model.threshold_for(0.95), isinstance(self.model, PhotoModel)
        counts = np.bincount(self.known_labels, minlength=len(self.names)) if len(self.known) else None
        return {
            "kind": "fit" if photos else "train",
            "classes": self.names,
            "labeled": None if counts is None else [int(count) for count in counts],
            "size": self.model.size,
            "network": printable(self.model.network),
            "license": printable(self.model.license, lines=True),
            "threshold": limit if math.isfinite(limit) else None,
        }

    def _nearest(self, row: np.ndarray, count: int) -> list[dict[str, Any]]:
        """The labeled photos whose features point most nearly the same way."""
        if not len(self.known):
            return []
        cosines = self.known @ row
        return [
            {
                "number": number,
                "class": self.names[self.known_labels[number]],
                "similarity": round(float(cosines[number]), 6),
                "photo": f"/labeled/{number}" if self._photo(number) is not None else None,
            }
            for number in map(int, np.argsort(-cosines, kind="stable")[:count])
        ]


def open_served(run: str | Path) -> Served:
    """The model of a run folder of either kind, with its labeled photos where they are still there."""
    folder = user_path(run)
    return Served(load(folder), folder)


def jpeg(image: np.ndarray) -> bytes:
    """A uint8 H×W×3 image, at least as large as a photo on the page."""
    from PIL import Image

    picture = Image.fromarray(image)
    if max(picture.size) < THUMBNAIL:
        times = max(1, THUMBNAIL // max(picture.size))
        picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()
