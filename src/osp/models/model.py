"""What can be asked about images, whatever made the model: classes, OOD scores, features, and where it looks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from osp.data.decode_pool import decode_all
from osp.evaluate.thresholds import ACCEPT

if TYPE_CHECKING:
    from osp.data.source import Progress
    from osp.models.gradcam import ClassMaps


@dataclass(frozen=True)
class Answer:
    """What a model says about N images, one row each."""

    probabilities: np.ndarray
    """Of the classes, N×K."""
    ood_score: np.ndarray
    """Larger = more OOD."""
    features: np.ndarray
    """What the encoder gives, N×D."""
    threshold: float
    """An image whose score lies above it counts as OOD."""
    groups: np.ndarray | None = None
    """The number of the group that each image would belong to if it is unknown, 0 for none; None without groups."""
    belongs: np.ndarray | None = None
    """The chance that each image shows one of the classes; None where nothing says so."""

    @property
    def classes(self) -> np.ndarray:
        """Index into `class_names` of the most likely class."""
        best: np.ndarray = self.probabilities.argmax(axis=1)
        return best

    @property
    def is_ood(self) -> np.ndarray:
        above: np.ndarray = self.ood_score > self.threshold
        return above


@dataclass(frozen=True)
class Prediction:
    """What is said of one file; only `file` and `reason` where it could not be read."""

    file: str
    label: str = ""
    """The most likely class."""
    probability: float = 0.0
    ood_score: float = 0.0
    inside: bool = False
    """One of the classes, rather than unknown."""
    probabilities: tuple[float, ...] = ()
    """Of all classes, where the image was looked at by itself."""
    group: str = ""
    """Of the unknown: `group-01` is the largest of the pile; empty for other images, and where it is of no group."""
    belongs: float | None = None
    """The chance that it shows one of the classes, whichever; None where nothing says so."""

    @property
    def sure(self) -> float:
        """The chance that it shows one of the classes, and this one."""
        return self.probability if self.belongs is None else self.belongs * self.probability

    reason: str = ""
    """Why it could not be read; empty where it could."""
    content: str = ""
    """The checksum of the file's bytes, where it is known."""


class Model(ABC):
    """A classifier that also says how unlike its classes an image looks.

    Images are a uint8 array (N×H×W, N×H×W×C or one H×W×3), a path, a Pillow image, or a list of any of these. Other
    sizes than the model's are cropped to the middle square and resized as in training. What cannot be read as images
    is a UserError.
    """

    class_names: tuple[str, ...]
    """Names of the K classes, in the order of the probabilities."""
    size: int
    """Side of the images that `answer` and `maps` take."""
    network: str
    """Name of the encoder."""

    @property
    @abstractmethod
    def license(self) -> str:
        """Of the encoder and its weights."""

    @abstractmethod
    def __call__(self, images: Any) -> Answer:
        """Classes, probabilities, OOD scores and features of images, from one pass."""

    @abstractmethod
    def answer(self, pixels: np.ndarray, accept: float = ACCEPT) -> Answer:
        """The same of uint8 N×3×size×size, with calibrated probabilities and the threshold for `accept`."""

    @abstractmethod
    def threshold_for(self, accept: float) -> float:
        """The OOD score up to which an image counts as one of the classes: accepts this share of the known ones."""

    @abstractmethod
    def maps(self, pixels: np.ndarray) -> ClassMaps:
        """What speaks for the predicted classes (Grad-CAM) in uint8 N×3×size×size; UserError without maps."""

    @abstractmethod
    def comparable(self, features: np.ndarray) -> np.ndarray:
        """Features as rows of length one, whose products say how alike two images look."""

    @abstractmethod
    def labeled(self) -> tuple[np.ndarray, np.ndarray]:
        """Comparable features and classes of the images that taught it; empty where they were not kept."""

    @property
    def threshold(self) -> float:
        """An image whose `ood_score` lies above this looks unknown: 95 % of the known images lie below it."""
        return self.threshold_for(ACCEPT)

    def predict(self, images: Any) -> np.ndarray:
        """The number of the most likely class of each image (an index into `class_names`)."""
        return self(images).classes

    def predict_proba(self, images: Any) -> np.ndarray:
        """Class probabilities, N×K."""
        return self(images).probabilities

    def ood_score(self, images: Any) -> np.ndarray:
        """How unlike the classes each image looks; larger = more OOD."""
        return self(images).ood_score

    def features(self, images: Any) -> np.ndarray:
        """Feature vectors, N×D."""
        return self(images).features

    def predict_files(
        self, files: str | Path | Sequence[str | Path], accept: float = ACCEPT, progress: Progress | None = None
    ) -> Iterator[Prediction]:
        """One prediction per file, in order, a batch at a time; a file that cannot be read does not stop the rest."""
        paths = [str(file) for file in ([files] if isinstance(files, str | Path) else files)]
        done = 0
        for images, skipped in decode_all(paths, self.size):
            reasons = dict(skipped)
            span = range(done, done + len(images) + len(skipped))
            done = span.stop
            readable = [paths[position] for position in span if position not in reasons]
            said = iter(predictions(readable, self.answer(images, accept), self.class_names) if readable else ())
            for position in span:
                bad = position in reasons
                yield Prediction(paths[position], reason=reasons[position]) if bad else next(said)
            if progress:
                progress(done, len(paths), "Predicting")


def predictions(files: Sequence[str], said: Answer, names: Sequence[str], every: bool = True) -> Iterator[Prediction]:
    """What an answer says of each of these files; with the probabilities of `every` class, or of the best alone."""
    groups = np.zeros(len(said.ood_score), np.int64) if said.groups is None else said.groups
    belongs = [None] * len(groups) if said.belongs is None else said.belongs.tolist()
    rows = zip(files, said.probabilities, said.ood_score, groups, belongs, strict=True)
    for file, chances, score, number, chance in rows:
        best = int(chances.argmax())
        inside = float(score) <= said.threshold
        others = tuple(map(float, chances)) if every else ()
        group = group_name(0 if inside else int(number))
        yield Prediction(file, names[best], float(chances[best]), float(score), inside, others, group, chance)


def group_name(number: int) -> str:
    """What a group of unknown photos is called.

    >>> group_name(3), group_name(0)
    ('group-03', '')
    """
    return f"group-{number:02d}" if number else ""


def named(class_names: Sequence[str]) -> str:
    """The number of classes and the first names.

    >>> named("abcdefgh")
    '8 classes: a, b, c, d, e, f, ...'
    """
    return f"{len(class_names)} classes: {', '.join(class_names[:6])}{', ...' if len(class_names) > 6 else ''}"
