"""Training on stored features begins as the instant answer, and is kept only where it is better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.small_backbone import small_backbone
from osp.errors import UserError
from osp.methods import available
from osp.models.instant import Instant
from osp.models.photo import PhotoModel, load_model
from osp.photos.features import VIEWS
from osp.photos.instant import fit_instant
from osp.photos.learning import Ground, improve, learn, views_for

DIM, CLASSES, LABELS, FOREIGN = 48, 3, 5, 80
Data = tuple[Instant, dict[str, np.ndarray], np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def data() -> Data:
    """Three known clusters and two foreign ones; other views are the features with noise."""
    draws = np.random.default_rng(0)
    means = draws.normal(size=(CLASSES + 2, DIM))

    def cluster(c: int, count: int) -> np.ndarray:
        return np.asarray(means[c] + 1.5 * draws.normal(size=(count, DIM)), np.float32)

    labels = np.repeat(np.arange(CLASSES), LABELS)
    labeled = np.concatenate([cluster(c, LABELS) for c in range(CLASSES)])
    pile = np.concatenate([cluster(c, 40) for c in range(CLASSES + 2)])
    instant = fit_instant(labeled, labels, pile, ["a", "b", "c"])
    rows = np.concatenate([labeled, pile])
    noise = {"plain": 0.0, "flip": 0.2, "weak": 0.3, "weak2": 0.3, "strong": 0.8, "strong2": 0.8}
    stored = {view: (rows + size * draws.normal(size=rows.shape)).astype(np.float32) for view, size in noise.items()}
    return instant, stored, labels, np.concatenate([cluster(c, 30) for c in range(CLASSES)])


@pytest.mark.parametrize("method", sorted(set(available()) - {"otct"}))
def test_every_method_but_that_of_pixels_starts_as_the_instant_answer(data: Data, method: str) -> None:
    """Rates so small that what is left after two steps is where they began."""
    instant, stored, labels, others = data
    ground = Ground.of(instant, {view: stored[view] for view in views_for(method, CLASSES)}, labels)
    start = learn(instant, ground, method, steps=6, lr=1e-9, pretrain_lr=1e-9)
    np.testing.assert_allclose(start.predict_proba(others), instant.predict_proba(others), atol=1e-3)


def test_what_needs_pixels_says_so() -> None:
    with pytest.raises(UserError, match="otct needs pixels and cannot learn from stored features"):
        views_for("otct", CLASSES)


@pytest.mark.parametrize(
    ("method", "views"),
    [
        ("osp", {"plain", "weak", "weak2", "strong", "strong2"}),
        ("openmatch", set(VIEWS)),
        ("supervised", {"plain", "weak", "weak2"}),
    ],
)
def test_features_are_made_for_all_draws_of_the_views_that_a_method_names(method: str, views: set[str]) -> None:
    assert set(views_for(method, CLASSES)) == views


@pytest.mark.parametrize("method", ["osp", "fixmatch"])
def test_training_moves_on_and_stays_good(data: Data, method: str) -> None:
    instant, stored, labels, others = data
    moved = learn(instant, Ground.of(instant, stored, labels), method, steps=40)
    truth = np.repeat(np.arange(CLASSES), 30)
    assert np.abs(moved.predict_proba(others) - instant.predict_proba(others)).max() > 1e-3
    assert (moved.predict_proba(others).argmax(axis=1) == truth).mean() > 0.8


def test_the_share_of_the_pile_that_is_cut_comes_from_held_out_labels(data: Data) -> None:
    instant, stored, labels, _ = data
    true = 1 - FOREIGN / (len(stored["plain"]) - len(labels))
    assert Ground.of(instant, stored, labels).id_share == pytest.approx(true, abs=0.25)  # from fifteen scores
    nothing_held_out = replace(instant, id_scores=instant.id_scores[:0])
    assert Ground.of(nothing_held_out, stored, labels).id_share == 0


def test_the_better_of_both_is_kept_and_survives_saving(data: Data, tmp_path: Path) -> None:
    instant, stored, labels, others = data
    learned, kept = improve(instant, stored, labels, "fixmatch")
    assert learned is not None
    assert learned.estimate is not None
    assert learned.estimate.images == len(labels)
    assert kept is instant or kept is learned
    backbone = small_backbone()
    PhotoModel(learned, backbone).save(tmp_path)
    again = load_model(tmp_path, backbone).instant
    assert again.adapter is not None
    np.testing.assert_array_equal(again.predict_proba(others), learned.predict_proba(others))


def test_nothing_is_trained_without_a_pile_or_two_photos_of_a_class(data: Data) -> None:
    instant, stored, labels, _ = data
    alone = {view: rows[: len(labels)] for view, rows in stored.items()}
    assert improve(instant, alone, labels) == (None, instant)
    first = np.arange(CLASSES) * LABELS
    single = replace(instant, estimate=None)
    few = {view: np.concatenate([rows[first], rows[len(labels) :]]) for view, rows in stored.items()}
    assert improve(single, few, labels[first]) == (None, single)
