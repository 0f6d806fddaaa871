"""Cutting the pool in two by its OOD scores: Otsu's threshold, or the share of ID images it seems to hold."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 256


def otsu_threshold(scores: Tensor) -> float:
    """Otsu's threshold of scores, γ of Eq. 1; of scores that are all equal, that value (so that nothing lies above it).

    Of 256 equal bins it is the center of bin i = argmax w1[i] · w2[i+1] · (m1[i] - m2[i+1])² (scikit-image's rule).

    >>> round(otsu_threshold(torch.tensor([0.0, 0.1, 0.1, 0.9, 1.0])), 2)
    0.1
    """
    if scores.numel() == 0:
        raise ValueError("no scores to find a threshold for")
    if not scores.isfinite().all():
        raise ValueError("a score is not a number")
    low, high = float(scores.min()), float(scores.max())
    if low == high:
        return low
    counts = torch.histc(scores.float().cpu(), bins=BINS, min=low, max=high).double()
    centers = low + (torch.arange(BINS, dtype=torch.float64) + 0.5) * ((high - low) / BINS)
    mass = counts * centers
    below, above = counts.cumsum(0), counts.flip(0).cumsum(0).flip(0)
    mean_below = mass.cumsum(0) / below.clamp(min=1)
    mean_above = mass.flip(0).cumsum(0).flip(0) / above.clamp(min=1)
    between = below[:-1] * above[1:] * (mean_below[:-1] - mean_above[1:]) ** 2
    return float(centers[int(between.argmax())])


LEAST = 0.3
"""Share of the ID images below which their distribution is too uncertain to compare the pool's with."""


def id_share(pool_scores: Tensor, id_scores: Tensor) -> float:
    """How much of a pool is ID, estimated from the scores of the pool and of held-out ID images.

    With F the share of scores up to t, F_pool(t) = π F_id(t) + (1 - π) F_ood(t) >= π F_id(t), so that no π above
    F_pool(t) / F_id(t) is possible; the estimate is the smallest such bound over the ID images' own scores from their
    0.3-quantile on. It is 1 for a pool without OOD images, where Otsu's threshold would still cut off a part.

    >>> id_share(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.8, 0.8, 0.9, 0.9, 0.9, 0.9]), torch.tensor([0.1, 0.2, 0.3, 0.4]))
    0.4
    """
    known = id_scores.sort().values
    first = int(LEAST * len(known))
    share_known = torch.arange(first + 1, len(known) + 1, device=known.device) / len(known)
    below = torch.searchsorted(pool_scores.sort().values, known[first:], right=True) / len(pool_scores)
    return round(min(float((below / share_known).min()), 1.0), 6)


def ranked(scores: Tensor, share: float, otherwise: float) -> Tensor:
    """The score below which this share of one side of the partition lies; the threshold where the side is empty."""
    if len(scores) == 0:
        return torch.tensor(otherwise, device=scores.device)
    return scores.sort().values[min(int(share * len(scores)), len(scores) - 1)]
