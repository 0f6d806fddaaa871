"""What a classifier says of one image: class, probability, OOD score, and whether it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from osp.photos.features import Features
from osp.photos.instant import Instant

_AT_ONCE = 1024


@dataclass(frozen=True)
class Decision:
    """What a classifier says of one image."""

    file: str
    label: str
    probability: float
    ood_score: float
    inside: bool
    """One of the classes, rather than foreign."""


def decide(instant: Instant, features: Features, accept: float = 0.95) -> Iterator[tuple[str, float, float, bool]]:
    """Class, probability, OOD score and whether it belongs, for each photo in order; flat in memory."""
    limit = instant.threshold(accept)
    for start in range(0, len(features), _AT_ONCE):
        rows = features.rows(slice(start, start + _AT_ONCE))
        probabilities, scores = instant.predict_proba(rows), instant.ood_score(rows)
        for chances, score in zip(probabilities, scores, strict=True):
            best = int(chances.argmax())
            yield instant.class_names[best], float(chances[best]), float(score), bool(score <= limit)
