"""Which images of a pile belong: the share of them that does, and the chance of each, from its OOD score alone.

Held-out labels say how known images are scored, N(m1, s1); the pile is a mixture of those and of unknown ones:

    g(s) = p N(s; m1, s1) + (1 - p) N(s; m0, s0)        p, m0 and s0 by expectation and maximization

with a prior of p at one half, worth a twentieth of the pile: where known and unknown look alike, few labels say little
about p. In a pile that holds nothing unknown both components are the same, and nothing says what p is. So a test asks
first whether the pile is scored any higher than the held-out images, and as far as it is not, p moves towards 1:

    p + (1 - p) clip((P - 0.02) / 0.18, 0, 1)           P: of the one-sided rank-sum test

docs/photos-measured.md has the error of p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from osp.evaluate.thresholds import known_share

ROUNDS = 300
PRIOR = 0.05
POINTS = 256
"""Quantiles that stand for the scores of a pile: the result is the same, and takes milliseconds."""
DRAWS = 40
"""Of the held-out images, with replacement, for the interval."""
LEAST_SPREAD = 0.05
SIGNIFICANT, LIKELY = 0.02, 0.2
"""P below which the pile surely holds unknown images, and above which it seems to hold none."""
KEPT = 0.9
"""The least share of the images that belong that a threshold made for 95 % of them lets in, more or less."""
MOST = 0.995
"""The largest share that a chance is counted with: one stranger in 200 is never ruled out."""
EVEN, SHARPNESS = 0.5, 1.5
"""A score that says how much speaks for none of the classes: where as much speaks for one of them, and the power of the
odds that come nearest the truth (docs/labeling.md)."""


@dataclass(frozen=True)
class Belonging:
    """The share of a pile that belongs to one of the classes, with an interval, and the two kinds of scores."""

    share: float
    low: float
    high: float
    """90 % of the fits to resampled held-out images lie between them, with the prior and without; the upper end is at
    least what holds where unknown images look just like known ones."""
    known: tuple[float, float]
    """Mean and standard deviation of the scores of images that belong..."""
    unknown: tuple[float, float]
    """... and of the others."""

    def strangers(self, images: int, let_in: int) -> tuple[int, int]:
        """How few and how many of the images that are let in may belong to none of the classes, where 90 to 100 % of
        those that belong are let in.

        >>> Belonging(0.6, 0.5, 0.75, (0, 1), (3, 1)).strangers(1000, 800)
        (50, 350)
        """
        least, most = (let_in - images * share for share in (self.high, KEPT * self.low))
        return max(int(least), 0), max(int(most), 0)

    def chance(self, scores: np.ndarray) -> np.ndarray:
        """That an image of this score belongs: p N1(s) / g(s), never rising with s."""
        (m1, s1), (m0, s0) = self.known, self.unknown
        bend = 1 / s1**2 - 1 / s0**2
        if abs(bend) > 1e-9:  # normal distributions of different widths cross twice: beyond the turn nothing changes
            turn = (m1 / s1**2 - m0 / s0**2) / bend
            scores = np.maximum(scores, turn) if bend > 0 else np.minimum(scores, turn)
        odds = ((scores - m0) / s0) ** 2 / 2 - ((scores - m1) / s1) ** 2 / 2 + np.log(s0 / s1)
        share = min(self.share, MOST)
        odds = odds + np.log(share / (1 - share))
        return np.asarray(1 / (1 + np.exp(-np.clip(odds, -50, 50))))


@dataclass(frozen=True)
class Spoken(Belonging):
    """The same where a person has said what is unknown, and a score s is the share of what speaks for it."""

    def chance(self, scores: np.ndarray) -> np.ndarray:
        """1 / (1 + (s / (1 - s))^1.5)."""
        share = np.clip(scores, 1e-6, 1 - 1e-6)
        return np.asarray(1 / (1 + (share / (1 - share)) ** SHARPNESS))


def spoken(found: Belonging, pile_scores: np.ndarray) -> Belonging:
    """Which images belong by such scores; the interval reaches as far as that of the scores alone, but not to 1: some
    are known to be unknown."""
    known, unknown = found.known, found.unknown
    share = float(Spoken(0, 0, 0, known, unknown).chance(pile_scores).mean())
    return Spoken(share, min(found.low, share), max(min(found.high, MOST), share), known, unknown)


def fit_belonging(pile_scores: np.ndarray, id_scores: np.ndarray, id_weights: np.ndarray) -> Belonging | None:
    """From scores of a pile and of held-out labels with their weights; None where either is too small to say."""
    if len(pile_scores) < 10 or len(id_scores) < 4:
        return None
    points = np.quantile(pile_scores.astype(np.float64), (np.arange(POINTS) + 0.5) / POINTS)
    rows = np.random.default_rng(0).integers(len(id_scores), size=(DRAWS, len(id_scores)))
    rows = np.concatenate([np.arange(len(id_scores))[None], rows])  # all of them first, then draws for the interval
    known = _normal(id_scores[rows].astype(np.float64), id_weights[rows])
    shares, unknown = _mixed(points, *known, PRIOR)
    free, _ = _mixed(points, *known, 0.0)
    share, ends = float(shares[0]), [np.quantile(each[1:], (0.05, 0.95)) for each in (shares, free)]
    low, high = min(each[0] for each in ends), max(each[1] for each in ends)
    most = known_share(pile_scores, id_scores, id_weights)  # where the unknown look just like the known
    low, high = min(float(low), share), max(float(high), most, share)
    alike = seems_known(pile_scores, id_scores, id_weights)
    if alike > SIGNIFICANT:
        share, high = share + (1 - share) * min((alike - SIGNIFICANT) / (LIKELY - SIGNIFICANT), 1.0), 1.0
    return Belonging(share, low, high, *((float(middle[0]), float(spread[0])) for middle, spread in (known, unknown)))


def seems_known(pile_scores: np.ndarray, id_scores: np.ndarray, id_weights: np.ndarray) -> float:
    """P that the scores of known images alone lie so high as the pile's, by the rank-sum test; small where the pile
    holds unknown images.

        z = (A - 1/2) / sqrt(1/12n + 1/12m)         A: chance that an image of the pile scores above a held-out one

    n held-out images, of which the weights leave (Σw)² / Σw², and m of the pile.
    """
    order, weights = np.sort(pile_scores), id_weights / id_weights.sum()
    below = (np.searchsorted(order, id_scores, "left") + np.searchsorted(order, id_scores, "right")) / 2 / len(order)
    above = 1 - float(weights @ below)
    deviation = math.sqrt((float((weights**2).sum()) + 1 / len(order)) / 12)
    return math.erfc((above - 0.5) / deviation / math.sqrt(2)) / 2


def _normal(scores: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each row."""
    weights = weights / weights.sum(axis=1, keepdims=True)
    middle = (weights * scores).sum(axis=1)
    variance = (weights * (scores - middle[:, None]) ** 2).sum(axis=1) * scores.shape[1] / (scores.shape[1] - 1)
    return middle, np.maximum(np.sqrt(variance), LEAST_SPREAD)


def _mixed(
    points: np.ndarray, means: np.ndarray, spreads: np.ndarray, prior: float
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """For each known component the share that it has of the points, and mean and deviation of the other one."""

    def density(middle: np.ndarray, spread: np.ndarray) -> np.ndarray:
        scaled = (points - middle[:, None]) / spread[:, None]
        return np.asarray(np.exp(-(scaled**2) / 2) / spread[:, None])

    of_known, share = density(means, spreads), np.full(len(means), 0.5)
    middle = np.full(len(means), np.quantile(points, 0.8))
    spread = np.full(len(means), max(float(points.std()) / 2, LEAST_SPREAD))
    for _ in range(ROUNDS):
        first, other = share[:, None] * of_known, (1 - share)[:, None] * density(middle, spread)
        belongs = first / np.maximum(first + other, 1e-300)
        share = (belongs.mean(axis=1) + prior / 2) / (1 + prior)
        rest = np.maximum(1 - belongs, 1e-12)
        rest /= rest.sum(axis=1, keepdims=True)
        middle = rest @ points
        variance = (rest * (points - middle[:, None]) ** 2).sum(axis=1)
        spread = np.maximum(np.sqrt(variance), LEAST_SPREAD)
    return share, (middle, spread)
