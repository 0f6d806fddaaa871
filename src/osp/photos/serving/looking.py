"""What is said of one uploaded image: class, probabilities, OOD score, where the model looks, the nearest labelled
photos. The same for a run of `osp fit` and one of `osp train`."""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from osp.data.decode import Unreadable, decode
from osp.data.resize import fit_images
from osp.errors import UserError, printable, user_path
from osp.photos.folder import labels_of
from osp.photos.model import PhotoModel
from osp.photos.places import photo_maps
from osp.photos.predict import TrainedModel, open_run
from osp.photos.reading import Label
from osp.report.gradcam import class_maps, overlay
from osp.report.looks import plain

if TYPE_CHECKING:
    from osp.engine.data import Data

THUMBNAIL = 224
"""Side of the labelled photos that are shown."""


@dataclass(frozen=True)
class Neighbor:
    """A labelled photo that looks like the one that was asked about."""

    number: int
    """Among the labelled photos."""
    label: str
    similarity: float
    """Cosine of the features."""
    photo: bool
    """Whether the photo itself can be shown."""


@dataclass(frozen=True)
class Look:
    """All that is said of one image."""

    probabilities: tuple[float, ...]
    ood_score: float
    threshold: float
    """Infinite where nothing is called foreign."""
    neighbors: tuple[Neighbor, ...]
    heatmap: bytes | None
    """A JPEG: the part of the image that the model sees, with Grad-CAM over it."""

    @property
    def inside(self) -> bool:
        return self.ood_score <= self.threshold


class Looker(ABC):
    """A model that is asked about one image at a time."""

    kind: str
    class_names: tuple[str, ...]
    size: int
    network: str
    licence: str
    known: np.ndarray
    """Features of the labelled photos, each of length one."""
    known_labels: np.ndarray

    def __call__(self, content: bytes, accept: float, neighbors: int, explain: bool, most_pixels: int) -> Look:
        """What the model says of a file in memory; `Unreadable` with the reason where it is no image."""
        pixels = decode(content, self.size, most_pixels)
        probabilities, score, row = self.answer(pixels)
        return Look(
            probabilities=tuple(map(float, probabilities)),
            ood_score=score,
            threshold=self.threshold(accept),
            neighbors=self._nearest(row, neighbors),
            heatmap=self._heatmap(pixels) if explain else None,
        )

    @abstractmethod
    def answer(self, pixels: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        """Probabilities, OOD score and features (of length one) of an image, uint8 3×size×size."""

    @abstractmethod
    def threshold(self, accept: float) -> float:
        """The OOD score up to which an image is taken for one of the classes."""

    @abstractmethod
    def seen(self, pixels: np.ndarray) -> np.ndarray:
        """Grad-CAM of the predicted class, size×size in 0..1; UserError where the network has no maps."""

    @abstractmethod
    def labeled_photo(self, number: int) -> np.ndarray | None:
        """A labelled photo as uint8 H×W×3; None where it is not to be had."""

    @abstractmethod
    def has_photo(self, number: int) -> bool:
        """Whether the photo can be shown."""

    def warm_up(self) -> None:
        """Have everything loaded before the first question."""
        blank = np.zeros((3, self.size, self.size), np.uint8)
        self.answer(blank)
        self._heatmap(blank)

    def _heatmap(self, pixels: np.ndarray) -> bytes | None:
        try:
            return jpeg(overlay(pixels, self.seen(pixels)))
        except UserError:
            return None

    def _nearest(self, row: np.ndarray, count: int) -> tuple[Neighbor, ...]:
        if not len(self.known):
            return ()
        cosines = self.known @ row
        nearest = np.argsort(-cosines, kind="stable")[:count]
        return tuple(
            Neighbor(int(i), self.class_names[self.known_labels[i]], float(cosines[i]), self.has_photo(int(i)))
            for i in nearest
        )


class PhotoLooker(Looker):
    """Of a run of `osp fit`."""

    kind = "fit"

    def __init__(self, model: PhotoModel, folder: Path) -> None:
        self._model = model
        self.class_names, self.size = model.class_names, model.backbone.size
        self.network, self.licence = model.backbone.name, model.backbone.license
        self.known, self.known_labels = model.instant.labeled, model.instant.labels
        self._files = _labels(folder, len(self.known))

    def answer(self, pixels: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        features = self._model.backbone.features(pixels[None]).numpy()
        instant = self._model.instant
        return instant.predict_proba(features)[0], float(instant.ood_score(features)[0]), instant.center(features)[0]

    def threshold(self, accept: float) -> float:
        return self._model.instant.threshold(accept)

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        found: np.ndarray = photo_maps(self._model, pixels[None]).maps[0]
        return found

    def has_photo(self, number: int) -> bool:
        return self._content(number) is not None

    def labeled_photo(self, number: int) -> np.ndarray | None:
        content = self._content(number)
        try:
            return None if content is None else plain(decode(content, THUMBNAIL))
        except Unreadable:
            return None

    def _content(self, number: int) -> bytes | None:
        """The very photo that was learned from: a file with another content is not shown under its name."""
        if number >= len(self._files):
            return None
        label = self._files[number]
        try:
            content = Path(label.file).read_bytes()
        except (OSError, ValueError):
            return None
        return content if hashlib.blake2b(content, digest_size=16).hexdigest() == label.content else None


class TrainedLooker(Looker):
    """Of a run of `osp train`."""

    kind = "train"

    def __init__(self, model: TrainedModel, folder: Path) -> None:
        self._model, self._predictor = model, model.predictor
        self.class_names, self.size = model.class_names, model.predictor.shape[1]
        self.network, self.licence = model.predictor.network, ""
        self.known, self.known_labels, self._ids = _labeled_of(folder)
        self._data = _images_of(folder)

    def answer(self, pixels: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        said = self._predictor(pixels.transpose(1, 2, 0)[None])
        powers = said.probabilities[0].astype(np.float64) ** (1 / self._model.temperature)
        return powers / powers.sum(), float(said.ood_score[0]), _units(said.features)[0]

    def threshold(self, accept: float) -> float:
        return self._model.threshold(accept)

    def seen(self, pixels: np.ndarray) -> np.ndarray:
        given = fit_images(pixels.transpose(1, 2, 0)[None], self._predictor.shape)
        found: np.ndarray = class_maps(self._predictor, given).maps[0]
        return found

    def has_photo(self, number: int) -> bool:
        return self._data is not None and number < len(self._ids)

    def labeled_photo(self, number: int) -> np.ndarray | None:
        if self._data is None or number >= len(self._ids):
            return None
        return plain(self._data.train.take([int(self._ids[number])]).numpy()[0])


def open_looker(run: str | Path, model: PhotoModel | TrainedModel | None = None) -> Looker:
    """The model of a run folder of either kind, with its labelled photos where they are still there."""
    folder = user_path(run)
    opened = open_run(folder) if model is None else model
    return PhotoLooker(opened, folder) if isinstance(opened, PhotoModel) else TrainedLooker(opened, folder)


def _labels(folder: Path, count: int) -> list[Label]:
    """The files that a fit has learned from, in the order of its features; none where the folder does not say."""
    try:
        found = labels_of(folder)
    except UserError:  # a model that was saved from Python
        return []
    return found if len(found) == count else []


def _labeled_of(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, classes and rows of the labelled images of a trained run."""
    from osp.evaluate.predictions import Predictions
    from osp.runs.folder import RunFolder

    path = RunFolder(folder).predictions
    nothing = np.empty((0, 1), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
    if not path.exists():
        return nothing
    group = Predictions.load(path).groups.get("labeled")
    if group is None or group.targets is None or not len(group):
        return nothing
    return _units(group.features.astype(np.float32)), group.targets, group.ids


def _images_of(folder: Path) -> Data | None:
    from osp.engine.data import open_again
    from osp.runs.run import Run

    try:
        return open_again(Run.read(folder))
    except UserError:
        return None


def _units(rows: np.ndarray) -> np.ndarray:
    units: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return units


def jpeg(image: np.ndarray) -> bytes:
    """A uint8 H×W×3 image, at least as large as a photo on the page."""
    from PIL import Image

    picture = Image.fromarray(image)
    if max(picture.size) < THUMBNAIL:
        whole = max(1, THUMBNAIL // max(picture.size))
        picture = picture.resize((picture.width * whole, picture.height * whole), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def about(looker: Looker) -> dict[str, object]:
    """What a page says of the model before any image."""
    limit = looker.threshold(0.95)
    counts = np.bincount(looker.known_labels, minlength=len(looker.class_names)) if len(looker.known) else None
    return {
        "kind": looker.kind,
        "classes": [printable(name) for name in looker.class_names],
        "labeled": None if counts is None else [int(count) for count in counts],
        "size": looker.size,
        "network": printable(looker.network),
        "license": printable(looker.licence, lines=True),
        "threshold": limit if np.isfinite(limit) else None,
    }
