"""The cut keeps about the share of known photos that is asked for, and varies less than held-out photos alone do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osp.errors import UserError
from osp.photos.cut import ENOUGH, known_share, threshold
from osp.photos.estimates import weighted_quantile

NOTHING = np.empty(0, np.float32)


def scores(seed: int, held_out: int, known: int, foreign: int) -> tuple[np.ndarray, np.ndarray]:
    """Of held-out known images around 0, and of a pile whose foreign ones lie around 3."""
    draws = np.random.default_rng(seed)
    pile = np.concatenate([draws.normal(size=known), 3 + draws.normal(size=foreign)])
    return draws.normal(size=held_out).astype(np.float32), pile.astype(np.float32)


@pytest.mark.parametrize(("known", "foreign"), [(300, 150), (150, 300)])
def test_the_cut_varies_less_than_that_of_few_held_out_images_and_is_nearer(known: int, foreign: int) -> None:
    errors, simple = [], []
    for seed in range(40):
        own, pile = scores(seed, 15, known, foreign)
        weights = np.ones_like(own)
        true = 1.645  # up to which 95 % of a normal distribution lie
        errors.append(threshold(0.95, own, weights, pile) - true)
        simple.append(weighted_quantile(own, weights, 0.95) - true)
    assert np.std(errors) < 0.95 * np.std(simple)
    assert np.mean(np.square(errors)) < np.mean(np.square(simple))


def test_the_share_that_is_asked_for_moves_it_and_must_be_a_share() -> None:
    own, pile = scores(0, 40, 200, 200)
    limits = [threshold(accept, own, np.ones_like(own), pile) for accept in (0.5, 0.8, 0.95, 0.99)]
    assert limits == sorted(limits)
    assert len(set(limits)) == 4
    for wrong in (0.0, 1.0, 1.5, math.nan):
        with pytest.raises(UserError, match="accept="):
            threshold(wrong, own, np.ones_like(own), pile)


def test_without_a_pile_or_with_a_small_one_held_out_images_decide() -> None:
    own, pile = scores(0, 40, ENOUGH, 0)
    weights = np.ones_like(own)
    alone = weighted_quantile(own, weights, 0.95)
    assert threshold(0.95, own, weights, NOTHING) == alone
    assert threshold(0.95, own, weights, pile[: ENOUGH - 1]) == alone
    assert threshold(0.95, own, weights, pile) != alone


def test_without_held_out_images_the_pile_decides_and_without_either_nothing_is_foreign() -> None:
    _, pile = scores(0, 0, 300, 300)
    limit = threshold(0.95, NOTHING, NOTHING, pile)
    assert (pile[:300] <= limit).mean() > 0.9
    assert (pile[300:] <= limit).mean() < 0.6
    assert threshold(0.95, NOTHING, NOTHING, pile[:1]) == math.inf


def test_the_share_of_the_pile_that_is_known() -> None:
    for known, foreign in ((400, 0), (200, 200), (40, 360)):
        own, pile = scores(1, 100, known, foreign)
        assert known_share(pile, own, np.ones_like(own)) == pytest.approx(known / 400, abs=0.12)
    assert math.isnan(known_share(NOTHING, own, np.ones_like(own)))
