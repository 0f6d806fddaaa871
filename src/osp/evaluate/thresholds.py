"""Thresholds of OOD scores, the share of known images in a pool, and the temperature of probabilities.

The threshold that accepts a share a of the known images is the a-quantile of the scores of images known to be ID that
were not learned from. Where there are none, the pool has to do. With G the share of pool images scored up to t, and p
that of known ones among them, G = p a + (1 - p) h at the threshold, h being the share of OOD images that are accepted;
p is estimated as the share below Otsu's threshold, h as one half.

The mean of both estimates was tried also with held-out scores (h = 0.3): docs/photos-measured.md says why not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from osp.errors import UserError
from osp.parts import otsu_threshold

ACCEPT = 0.95
"""Share of the known images that a threshold accepts unless asked otherwise."""
OOD_ACCEPTED = 0.5
"""h: large, for Otsu's threshold is too low as a rule."""


def thresholds(known: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The value of each score that 95 % of images known to be ID do not exceed."""
    return {name: float(np.quantile(values, ACCEPT)) for name, values in known.items()}


def threshold(accept: float, id_scores: np.ndarray, id_weights: np.ndarray, pile_scores: np.ndarray) -> float:
    """The score up to which an image counts as known; infinite where nothing says so."""
    check_accept(accept)
    if len(id_scores):
        return weighted_quantile(id_scores, id_weights, accept)
    if len(pile_scores) < 2:
        return math.inf
    share = known_share(pile_scores, id_scores, id_weights)
    return float(np.quantile(pile_scores, accept * share + OOD_ACCEPTED * (1 - share)))


def check_accept(accept: float) -> None:
    """Refuse what is no share."""
    if not 0 < accept < 1:
        meant = f" Did you mean {accept / 100:g}?" if 1 < accept < 100 else ""
        raise UserError(f"accept={accept:g}: a share between 0 and 1, such as 0.95.{meant}")


def known_share(pile_scores: np.ndarray, id_scores: np.ndarray, id_weights: np.ndarray) -> float:
    """Estimated share of the pile that is known: the smallest G(t) / F(t) over the upper half of the held-out scores,
    for G(t) >= p F(t) everywhere; what lies below Otsu's threshold where nothing was held out; NaN without a pile."""
    if not len(pile_scores):
        return math.nan
    if not len(id_scores):
        limit = otsu_threshold(torch.from_numpy(np.asarray(pile_scores, np.float32)))
        return float((pile_scores <= limit).mean())
    ratios = []
    for accepted in np.arange(0.5, 0.96, 0.05):
        limit = weighted_quantile(id_scores, id_weights, float(accepted))
        share = float(id_weights[id_scores <= limit].sum() / id_weights.sum())
        ratios.append(float((pile_scores <= limit).mean()) / share)
    return min(1.0, min(ratios))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value up to which at least this share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.75)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order].astype(np.float64))
    place = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-9)))
    return float(values[order][min(place, len(values) - 1)])


def fit_temperature(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """The temperature with the least log loss. Targets keep 1/(n + 2) back, so that no mistake among few images is no
    certainty (after Platt)."""
    candidates = np.geomspace(0.02, 50, 120)
    kept_back = 1 / (len(labels) + 2)
    losses = [log_loss(logits / t, labels, weights, kept_back) for t in candidates]
    return float(candidates[int(np.argmin(losses))])


def log_loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, kept_back: float = 0.0) -> float:
    logs = logits - logits.max(axis=1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
    right = logs[np.arange(len(labels)), labels]
    loss = -(1 - kept_back) * right - kept_back * logs.mean(axis=1)
    return float((weights * loss).sum() / weights.sum())
