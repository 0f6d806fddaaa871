"""Where to cut between known and foreign photos by their OOD scores, which are larger for what is more foreign.

Labelled images, each seen as if it had no label, say it: the threshold that accepts a share a of the known images is
the a-quantile of their scores. Where every class has one image there are none, and the pile has to say it. With G the
share of pile images scored up to t, and p that of known ones among them, G = p a + (1 - p) h at the threshold, h being
the share of foreign images that get in; p is taken as the share below Otsu's threshold, h as one half.

The mean of both estimates was tried also where there are held-out scores (h = 0.3): docs/photos.md says why not.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from osp.errors import UserError
from osp.parts import otsu_threshold
from osp.photos.estimates import weighted_quantile

LET_IN = 0.5
"""h: large, for Otsu's threshold is too low as a rule."""


def threshold(accept: float, id_scores: np.ndarray, id_weights: np.ndarray, pile_scores: np.ndarray) -> float:
    """The score up to which an image is taken for a known one; infinite where there is nothing to tell by."""
    check_accept(accept)
    if len(id_scores):
        return weighted_quantile(id_scores, id_weights, accept)
    if len(pile_scores) < 2:
        return math.inf
    share = known_share(pile_scores, id_scores, id_weights)
    return float(np.quantile(pile_scores, accept * share + LET_IN * (1 - share)))


def check_accept(accept: float) -> None:
    """Refuse what is no share."""
    if not 0 < accept < 1:
        raise UserError(f"accept={accept}: a share between 0 and 1, such as 0.95.")


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
