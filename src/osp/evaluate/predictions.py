"""What a run leaves to count with: `predictions.npz`, written once at the end and read without torch.

Groups `test`, `test_ood`, `validation` and `labeled` (and any other set that was tested): for each image its row number
in the set, class, logits, scores by name, and features in half precision. Of the `pool` every image has its predicted
class, confidence and scores, and a sample of at most 2,000 has logits and features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from osp.errors import UserError
from osp.files import read_arrays

POOL_SAMPLE = 2000
"""Pool images whose logits and features are kept: the features of a large pool would not fit."""

FORMAT = np.array("osp predictions 1")


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
        """Only these rows."""
        columns = (self.predicted, self.confidence, self.scores, self.outside, self.truth)
        return Judged([self.where[row] for row in chosen], *(column[chosen] for column in columns))


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

    def arrays(self) -> dict[str, np.ndarray]:
        """As plain arrays by name, features and logits in half precision."""
        names = sorted(self.thresholds)
        found = {
            "format": FORMAT,
            "score": np.array(self.score),
            "threshold_names": np.array(names),
            "thresholds": np.array([self.thresholds[name] for name in names], np.float64),
        }
        for name, group in self.groups.items():
            found |= _flat(name, group.scores, ids=group.ids, logits=_half(group.logits), targets=group.targets)
            found[f"{name}/features"] = _half(group.features)
        pool = self.pool
        found |= _flat("pool", pool.scores, ids=pool.ids, predicted=pool.predicted.astype(np.int32), kept=pool.kept)
        found |= {"pool/confidence": _half(pool.confidence), "pool/sample": pool.sample}
        found |= {"pool/logits": _half(pool.logits), "pool/features": _half(pool.features)}
        return found

    def problems(self) -> Iterator[str]:
        """What does not fit together."""
        if self.score not in self.thresholds:
            yield f"the score {self.score!r} has no threshold"
        classes = self.pool.logits.shape[-1] if self.pool.logits.ndim == 2 else -1
        for name, group in self.groups.items():
            beside = {"logits": group.logits, "features": group.features, **group.scores}
            if group.targets is not None:
                beside["targets"] = group.targets
            yield from _uneven(name, group.ids, beside, ("logits", "features"))
            if group.logits.ndim != 2 or group.logits.shape[1] != classes:
                yield f"{name} has logits of shape {group.logits.shape}, the pool's have {classes} classes"
            if group.targets is not None and not _inside(group.targets, classes):
                yield f"{name} has targets that are no classes"
        pool = self.pool
        beside = {"predicted": pool.predicted, "confidence": pool.confidence, **pool.scores}
        if pool.kept is not None:
            beside["kept"] = pool.kept
        yield from _uneven("pool", pool.ids, beside)
        yield from _uneven(
            "pool's sample", pool.sample, {"logits": pool.logits, "features": pool.features}, ("logits", "features")
        )
        if not _inside(pool.sample, len(pool.ids)):
            yield "the pool's sample has rows that the pool has not"
        if not _inside(pool.predicted, classes):
            yield "the pool has predictions that are no classes"

    @classmethod
    def load(cls, path: Path) -> Predictions:
        """Read what `arrays` gave; a damaged file is a UserError."""
        try:
            arrays = read_arrays(path)
            if str(arrays["format"]) != str(FORMAT):
                raise UserError(f"{path} was written by another version.")
            names = [key.removesuffix("/ids") for key in arrays if key.endswith("/ids") and key != "pool/ids"]
            groups = {
                name: Group(
                    arrays[f"{name}/ids"],
                    arrays[f"{name}/logits"].astype(np.float32),
                    _scores(arrays, name),
                    arrays[f"{name}/features"].astype(np.float32),
                    arrays.get(f"{name}/targets"),
                )
                for name in names
            }
            pool = PoolPredictions(
                arrays["pool/ids"],
                arrays["pool/predicted"].astype(np.int64),
                arrays["pool/confidence"].astype(np.float32),
                _scores(arrays, "pool"),
                arrays.get("pool/kept"),
                arrays["pool/sample"],
                arrays["pool/logits"].astype(np.float32),
                arrays["pool/features"].astype(np.float32),
            )
            thresholds = dict(zip(map(str, arrays["threshold_names"]), map(float, arrays["thresholds"]), strict=True))
            found = cls(str(arrays["score"]), thresholds, groups, pool)
            if problem := next(found.problems(), None):
                raise ValueError(problem)
            return found
        except FileNotFoundError:
            raise UserError(f"There is no {path}; the run is not finished.") from None
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"{path} is damaged: {error}") from None


def _uneven(
    name: str, ids: np.ndarray, beside: Mapping[str, np.ndarray], tables: tuple[str, ...] = ()
) -> Iterator[str]:
    """Arrays that have not one row for each of the ids."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        yield f"{name} has no row numbers"
        return
    for key, values in beside.items():
        if values.ndim != (2 if key in tables else 1) or len(values) != len(ids) or values.dtype.kind not in "biuf":
            yield f"{name}/{key} is {values.dtype} of shape {values.shape}, beside {len(ids)} rows"


def _inside(values: np.ndarray, end: int) -> bool:
    """Whether all of these are whole numbers from 0 to below `end`."""
    return values.dtype.kind in "iu" and (not values.size or bool(values.min() >= 0 and values.max() < end))


def _flat(name: str, scores: Mapping[str, np.ndarray], **arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    flat = {f"{name}/{key}": value for key, value in arrays.items() if value is not None}
    return flat | {f"{name}/scores/{score}": values.astype(np.float32) for score, values in scores.items()}


def _scores(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    prefix = f"{name}/scores/"
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def _half(values: np.ndarray) -> np.ndarray:
    """Half precision; what is too large for it stays finite."""
    largest = float(np.finfo(np.float16).max)
    halved: np.ndarray = np.clip(values, -largest, largest).astype(np.float16)
    return halved
