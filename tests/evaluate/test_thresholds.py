"""The cut keeps about the share of known photos that is asked for, by held-out photos or, without any, by the pile."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osp.errors import UserError
from osp.evaluate.thresholds import known_share, threshold, weighted_quantile

NOTHING = np.empty(0, np.float32)


def scores(seed: int, held_out: int, known: int, foreign: int) -> tuple[np.ndarray, np.ndarray]:
    """Of held-out known images around 0, and of a pile whose foreign ones lie around 3."""
    draws = np.random.default_rng(seed)
    pile = np.concatenate([draws.normal(size=known), 3 + draws.normal(size=foreign)])
    return draws.normal(size=held_out).astype(np.float32), pile.astype(np.float32)


def test_the_share_that_is_asked_for_moves_it_and_must_be_a_share() -> None:
    own, pile = scores(0, 40, 200, 200)
    limits = [threshold(accept, own, np.ones_like(own), pile) for accept in (0.5, 0.8, 0.95, 0.99)]
    assert limits == sorted(limits)
    assert len(set(limits)) == 4
    for wrong in (0.0, 1.0, 1.5, math.nan):
        with pytest.raises(UserError, match="accept="):
            threshold(wrong, own, np.ones_like(own), pile)
    with pytest.raises(UserError, match=r"accept=95: .* Did you mean 0\.95\?"):
        threshold(95.0, own, np.ones_like(own), pile)


def test_held_out_images_decide_where_there_are_any() -> None:
    own, pile = scores(0, 40, 200, 200)
    weights = np.ones_like(own)
    assert threshold(0.95, own, weights, pile) == weighted_quantile(own, weights, 0.95)
    assert threshold(0.95, own, weights, NOTHING) == weighted_quantile(own, weights, 0.95)


def test_without_held_out_images_the_pile_decides_and_without_either_nothing_is_foreign() -> None:
    _, pile = scores(0, 0, 300, 300)
    limit = threshold(0.95, NOTHING, NOTHING, pile)
    assert (pile[:300] <= limit).mean() > 0.9
    assert (pile[300:] <= limit).mean() < 0.7
    assert threshold(0.95, NOTHING, NOTHING, pile[:1]) == math.inf


def test_the_share_of_the_pile_that_is_known() -> None:
    for known, foreign in ((400, 0), (200, 200), (40, 360)):
        own, pile = scores(1, 100, known, foreign)
        assert known_share(pile, own, np.ones_like(own)) == pytest.approx(known / 400, abs=0.12)
    assert math.isnan(known_share(NOTHING, own, np.ones_like(own)))
