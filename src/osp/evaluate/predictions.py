"""What a run leaves to count with: `predictions.npz`, written once at the end and read without torch.

Groups `test`, `test_ood`, `validation` and `labeled` (and any other set that was tested): for each image its row number
in the set, class, logits, scores by name, and features in half precision. Of the `pool` every image has its predicted
class, confidence and scores, and a sample of at most 2,000 has logits and features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from osp.errors import UserError
from osp.files import read_arrays

POOL_SAMPLE = 2000
"""Pool images whose logits and features are kept: the features of a large pool would not fit."""

FORMAT = np.array("osp predictions 1")
HALVED = {"logits", "features", "confidence"}
"""Kept in half precision; what is too large for it stays finite."""
LARGEST_HALF = float(np.finfo(np.float16).max)
STORED: dict[str, type] = {"scores": np.float32, "predicted": np.int32}
PERHAPS = ("targets", "kept")
"""What not all images have."""


@dataclass(frozen=True)
class Group:
    """Images of one kind, with one row each."""

    ids: np.ndarray
    """int64: row in the training images (validation, labeled, pool) or in the test images."""
    logits: np.ndarray
    scores: dict[str, np.ndarray]
    """OOD scores by name; larger = more OOD."""
    features: np.ndarray = field(repr=False)
    targets: np.ndarray | None = None
    """int64 class numbers, where the images have one of the classes."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def predicted(self) -> np.ndarray:
        classes: np.ndarray = self.logits.argmax(axis=1)
        return classes


@dataclass(frozen=True)
class PoolPredictions:
    """The unlabeled images."""

    ids: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    """Largest softmax probability."""
    scores: dict[str, np.ndarray]
    kept: np.ndarray | None
    """Which images the method takes for ID, where it partitions the pool."""
    sample: np.ndarray
    """Rows of the pool that have logits and features."""
    logits: np.ndarray
    features: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)


NONE, UNSAID = -1, -2
"""In place of a class: none of the classes (OOD), and nothing is known."""


@dataclass(frozen=True)
class Judged:
    """Images of one kind as pages show them, a row each: where each is, what a model says of it, what is known."""

    where: list[Any]
    """The file of a photo, or its place in a data set."""
    predicted: np.ndarray
    confidence: np.ndarray
    """Probability of that class."""
    scores: np.ndarray
    """OOD scores; larger = more OOD."""
    outside: np.ndarray
    """Which the model calls unknown."""
    truth: np.ndarray
    """int64: the class, `NONE` or `UNSAID`."""

    def __len__(self) -> int:
        return len(self.where)

    def rows(self, chosen: np.ndarray) -> Judged:
        columns = (self.predicted, self.confidence, self.scores, self.outside, self.truth)
        return Judged([self.where[row] for row in chosen], *(column[chosen] for column in columns))


def sample_rows(size: int, most: int = POOL_SAMPLE) -> np.ndarray:
    """At most `most` of `size` rows, evenly spread.

    >>> sample_rows(5, 3).tolist()
    [0, 2, 4]
    """
    return np.linspace(0, max(size - 1, 0), min(most, size)).astype(np.int64)


@dataclass(frozen=True)
class Predictions:
    """Everything a trained model said, and which score is the reported one."""

    score: str
    thresholds: dict[str, float]
    """By score: 95 % of the validation images lie at or below it."""
    groups: dict[str, Group]
    pool: PoolPredictions

    @property
    def threshold(self) -> float:
        return self.thresholds[self.score]

    def group(self, name: str) -> Group | None:
        """A group of images that has any."""
        found = self.groups.get(name)
        return found if found is not None and len(found) else None

    def _parts(self) -> list[tuple[str, Group | PoolPredictions]]:
        return [*self.groups.items(), ("pool", self.pool)]

    def arrays(self) -> dict[str, np.ndarray]:
        """As plain arrays by name, features and logits in half precision."""
        names = sorted(self.thresholds)
        found = {
            "format": FORMAT,
            "score": np.array(self.score),
            "threshold_names": np.array(names),
            "thresholds": np.array([self.thresholds[name] for name in names], np.float64),
        }
        for name, images in self._parts():
            for key, values in _arrays_of(images).items():
                if key in HALVED:
                    values = np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
                found[f"{name}/{key}"] = values.astype(STORED.get(key.partition("/")[0], values.dtype), copy=False)
        return found

    def problems(self) -> Iterator[str]:
        """What does not fit together."""
        if self.score not in self.thresholds:
            yield f"the score {self.score!r} has no threshold"
        for name in ("test", "test_ood"):
            if name not in self.groups:
                yield f"the group {name} is missing"
        for name, images in self._parts():
            if (found := images.scores.get(self.score)) is None or not np.isfinite(found).all():
                yield f"{name}/scores/{self.score} is missing, or holds numbers that are none"
        if "test" in self.groups and self.groups["test"].targets is None:
            yield "test/targets is missing"
        classes = self.pool.logits.shape[-1] if self.pool.logits.ndim == 2 else -1
        for name, images in self._parts():
            arrays = _arrays_of(images)
            for key, values in arrays.items():
                table = key in ("logits", "features")
                beside = arrays.get("sample", images.ids) if table else values if key == "sample" else images.ids
                kinds = "iu" if key in ("ids", "sample") else "biuf"
                if values.ndim != 1 + table or values.dtype.kind not in kinds or len(values) != len(beside):
                    yield f"{name}/{key} is {values.dtype} of shape {values.shape}, beside {len(beside)} rows"
            if images.logits.shape[1:] != (classes,):
                yield f"{name} has logits of shape {images.logits.shape}, the pool's have {classes} classes"
            for key, end in (("targets", classes), ("predicted", classes), ("sample", len(images))):
                numbers = arrays.get(key, np.zeros(0, np.int64))
                if numbers.dtype.kind not in "iu" or (numbers.size and not 0 <= numbers.min() <= numbers.max() < end):
                    yield f"{name}/{key} has numbers that are not from 0 to below {end}"

    @classmethod
    def load(cls, path: Path) -> Predictions:
        """Read what `arrays` gave; a damaged file is a UserError."""
        try:
            arrays = read_arrays(path)
            if str(arrays["format"]) != str(FORMAT):
                raise UserError(f"{path} was written by another version.")
            names = [key.removesuffix("/ids") for key in arrays if key.endswith("/ids") and key != "pool/ids"]
            groups = {name: _of_arrays(Group, name, arrays) for name in names}
            pool = _of_arrays(PoolPredictions, "pool", arrays)
            thresholds = dict(zip(map(str, arrays["threshold_names"]), map(float, arrays["thresholds"]), strict=True))
            found = cls(str(arrays["score"]), thresholds, groups, pool)
            if problem := next(found.problems(), None):
                raise ValueError(problem)
            return found
        except FileNotFoundError:
            raise UserError(f"There is no {path}; the run is not finished.") from None
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {error}") from None


def _arrays_of(images: Group | PoolPredictions) -> dict[str, np.ndarray]:
    """By name, those of the scores as `scores/NAME`."""
    found = {key: value for key, value in vars(images).items() if isinstance(value, np.ndarray)}
    return found | {f"scores/{name}": values for name, values in images.scores.items()}


Images = TypeVar("Images", Group, PoolPredictions)


def _of_arrays(kind: type[Images], name: str, arrays: Mapping[str, np.ndarray]) -> Images:
    own = {key.removeprefix(f"{name}/"): values for key, values in arrays.items() if key.startswith(f"{name}/")}
    parts: dict[str, Any] = {
        key: own.get(key) if key in PERHAPS else own[key] for key in kind.__annotations__ if key != "scores"
    }
    for key in HALVED & parts.keys():
        parts[key] = parts[key].astype(np.float32)
    if "predicted" in parts:
        parts["predicted"] = parts["predicted"].astype(np.int64)
    scores = {key.removeprefix("scores/"): values for key, values in own.items() if key.startswith("scores/")}
    return kind(**parts, scores=scores)
