"""Where to cut between known and foreign photos by their OOD scores, which are larger for what is more foreign.

Two things are known: scores of labelled images, each seen as if it had no label (few, but certainly known), and those
of the pile (many, of unknown kind). With F and G the shares of known and of all pile images scored up to t, and p the
share of the pile that is known, G(t) = p F(t) + (1 - p) H(t), H being that of the foreign ones. The threshold that
accepts a share a of the known images is the mean of two estimates: the a-quantile of the held-out scores, and the score
where G = p a + (1 - p) h, for a usual share h of foreign images that get in. The first varies much where labels are
few, the second is wrong where h is; the mean is better than either.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from osp.errors import UserError
from osp.parts import otsu_threshold
from osp.photos.estimates import weighted_quantile

LET_IN = 0.3
"""h."""
LET_IN_ALONE = 0.5
"""h where nothing can be held out, and Otsu's threshold, which is too low as a rule, has to say what p is."""
ENOUGH = 50
"""Images of the pile from which on its scores have a say."""


def threshold(accept: float, id_scores: np.ndarray, id_weights: np.ndarray, pile_scores: np.ndarray) -> float:
    """The score up to which an image is taken for a known one; infinite where there is nothing to tell by."""
    check_accept(accept)
    own = weighted_quantile(id_scores, id_weights, accept) if len(id_scores) else None
    if len(pile_scores) < (2 if own is None else ENOUGH):
        return math.inf if own is None else own
    share = known_share(pile_scores, id_scores, id_weights)
    let_in = LET_IN_ALONE if own is None else LET_IN
    by_pile = float(np.quantile(pile_scores, accept * share + let_in * (1 - share)))
    return by_pile if own is None else (own + by_pile) / 2


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
