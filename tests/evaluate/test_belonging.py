"""The share of a pile that belongs, and the chance of each image, are about true for scores of known make."""

from __future__ import annotations

import numpy as np
import pytest

from osp.evaluate.belonging import Belonging, fit_belonging, spoken


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
