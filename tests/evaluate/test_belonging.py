"""The share of a pile that belongs, and the chance of each image, are about true for scores of known make."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu  # type: ignore[import-untyped]

from osp.evaluate.belonging import Belonging, fit_belonging, seems_known, spoken


def world(share: float, apart: float, seed: int, held: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of a pile, which of them belong, and scores of held-out labels."""
    draws = np.random.default_rng(seed)
    belongs = draws.random(1500) < share
    pile = np.where(belongs, draws.normal(-1, 0.5, 1500), draws.normal(-1 + apart, 0.7, 1500))
    return pile, belongs, draws.normal(-1, 0.5, held)


@pytest.mark.parametrize(("share", "apart"), [(0.25, 1.5), (0.5, 1.5), (0.25, 3.0), (0.8, 3.0)])
def test_share_and_strangers_are_about_true_also_where_scores_overlap(share: float, apart: float) -> None:
    errors, strangers, covered = [], [], []
    for seed in range(4):
        pile, belongs, held = world(share, apart, seed)
        found = fit_belonging(pile, held, np.ones(len(held)))
        assert found is not None
        errors.append(found.share - belongs.mean())
        covered.append(found.low - 0.02 <= belongs.mean() <= found.high + 0.02)
        inside = pile <= np.quantile(held, 0.95)
        strangers.append((1 - found.chance(pile[inside])).mean() - (~belongs[inside]).mean())
    assert np.abs(errors).mean() < 0.08
    assert np.abs(strangers).mean() < 0.08
    assert np.mean(covered) >= 0.75


@pytest.mark.parametrize("held", [20, 80])
def test_a_pile_without_strangers_is_not_said_to_hold_many(held: int) -> None:
    shares, tops, strangers = [], [], []
    for seed in range(8):
        pile, _, labels = world(1.0, 2.0, seed, held)
        found = fit_belonging(pile, labels, np.ones(held))
        assert found is not None
        shares.append(found.share)
        tops.append(found.high)
        strangers.append((1 - found.chance(pile)).mean())
    assert np.mean(shares) > 0.75  # 0.85 and 0.90; without the test 0.48
    assert np.mean(np.equal(tops, 1)) >= 0.75
    assert np.mean(strangers) < 0.25  # 0.16 and 0.11; without it 0.55


def test_the_test_for_strangers_is_the_rank_sum_test_and_weights_count() -> None:
    draws = np.random.default_rng(0)
    held, pile = draws.normal(0, 1, 30), draws.normal(0.4, 1, 400)
    trusted = mannwhitneyu(pile, held, alternative="greater", method="asymptotic", use_continuity=False).pvalue
    assert seems_known(pile, held, np.ones(30)) == pytest.approx(trusted, rel=0.05)
    assert seems_known(pile, held, np.full(30, 7.0)) == pytest.approx(seems_known(pile, held, np.ones(30)))
    low = np.where(held < np.median(held), 1.0, 1e-9)  # the lower half alone lies farther below the pile
    assert seems_known(pile, held, low) < trusted
    assert seems_known(np.zeros(50), np.zeros(8), np.ones(8)) == 0.5


def test_the_chance_never_rises_with_the_score_whichever_kind_is_wider() -> None:
    scores = np.linspace(-30, 30, 400)
    for known, unknown in (((-1.0, 0.4), (1.0, 1.2)), ((-1.0, 1.2), (1.0, 0.4)), ((-1.0, 0.7), (1.0, 0.7))):
        chance = Belonging(0.4, 0.2, 0.6, known, unknown).chance(scores)
        assert (np.diff(chance) <= 1e-12).all()
        assert chance.min() >= 0
        assert chance.max() <= 1
        at = np.array([known[0] + unknown[0]]) / 2
        first, second = (np.exp(-(((at - m) / s) ** 2) / 2) / s for m, s in (known, unknown))
        expected = 0.4 * first / (0.4 * first + 0.6 * second)
        np.testing.assert_allclose(Belonging(0.4, 0.2, 0.6, known, unknown).chance(at), expected, rtol=1e-6)


def test_nothing_is_said_without_held_out_labels_or_pile_and_equal_scores_do_no_harm() -> None:
    pile, _, held = world(0.5, 2.0, 0)
    assert fit_belonging(pile, held[:0], held[:0]) is None
    assert fit_belonging(pile[:5], held, np.ones(len(held))) is None
    found = fit_belonging(np.zeros(50), np.zeros(8), np.ones(8))
    assert found is not None
    assert 0 <= found.low <= found.share <= found.high <= 1
    assert np.isfinite(found.chance(np.array([-1e6, 0.0, 1e6]))).all()


def test_where_a_person_said_what_is_unknown_a_score_is_the_share_that_speaks_for_it() -> None:
    scores = np.array([0.0, 0.2, 0.5, 0.8, 1.0, 3.0])
    found = spoken(Belonging(0.5, 0.4, 0.6, (0.0, 1.0), (1.0, 1.0)), scores)
    odds = 0.25**1.5
    expected = [1, 1 / (1 + odds), 0.5, odds / (1 + odds), 0, 0]
    np.testing.assert_allclose(found.chance(scores), expected, atol=1e-6)
    np.testing.assert_allclose(found.share, np.mean(expected), atol=1e-6)
    assert (found.low, found.high) == (0.4, 0.6)


def test_where_a_person_said_what_is_unknown_no_interval_reaches_to_all() -> None:
    everything = Belonging(0.9, 0.5, 1.0, (0.0, 1.0), (1.0, 1.0))
    assert spoken(everything, np.array([0.0, 0.2])).high < 1


def test_the_range_of_strangers_follows_from_the_interval_of_the_share() -> None:
    found = Belonging(0.6, 0.5, 0.75, (0.0, 1.0), (3.0, 1.0))
    assert found.strangers(1000, 800) == (50, 350)  # 800 - 0.75 x 1000 and 800 - 0.9 x 0.5 x 1000
    assert found.strangers(1000, 400) == (0, 0)
