"""The instant answer is a good classifier with honest estimates, from one label per class to many unequal ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits

from osp.errors import UserError
from osp.evaluate.estimates import folds_of
from osp.evaluate.metrics import detection, expected_calibration_error, softmax, wilson_interval
from osp.models.instant import Instant, centered, distance, lengths, nearest, tensor
from osp.models.photo import PLAIN, PhotoModel, read_model
from osp.parts.pool_score import ask_pool
from osp.photos.instant import BALANCED, LEAST_PILE, fit_head, fit_instant, folds_for

NAMES = ("a", "b", "c", "d")


class World:
    """Blobs on top of a large common mean, as frozen features have it: four known classes, two foreign."""

    def __init__(self, seed: int, noise: float = 1.0, dim: int = 64) -> None:
        self.random = np.random.default_rng(seed)
        self.centers = self.random.normal(size=(6, dim)) + 5
        self.noise, self.dim = noise, dim

    def draw(self, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(len(counts)), counts)
        noise = self.random.normal(size=(len(labels), self.dim)) * self.noise
        return (self.centers[labels] + noise).astype(np.float32), labels


def test_small_matrices_take_one_thread_and_leave_the_number_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = LogisticRegression.fit

    def watched(self: LogisticRegression, *given: np.ndarray) -> LogisticRegression:
        seen.extend(each["num_threads"] for each in threadpool_info())
        return plain(self, *given)

    monkeypatch.setattr(LogisticRegression, "fit", watched)
    rows, targets = World(0).draw([3, 3])
    with threadpool_limits(2):
        before = threadpool_info()
        fit_head(rows, targets, 2, 1.0)
        assert threadpool_info() == before
    assert {each["num_threads"] for each in before} == {2}
    assert set(seen) == {1}


def fitted(world: World, labels: list[int], pile: list[int]) -> Instant:
    rows, targets = world.draw(labels)
    return fit_instant(rows, targets, world.draw(pile)[0], NAMES[: len(labels)])


@pytest.mark.parametrize("labels", [1, 5, 20])
def test_never_worse_than_logistic_regression_beyond_chance_and_better_at_foreign_images(labels: int) -> None:
    ours, theirs, scores, simple = [], [], [], []
    for seed in range(5):
        world = World(seed, noise=1.6)
        rows, targets = world.draw([labels] * 4)
        pile, _ = world.draw([60] * 6)
        test, truth = world.draw([50] * 6)
        known = truth < 4
        instant = fit_instant(rows, targets, pile, NAMES)
        ours.append((instant.predict_proba(test[known]).argmax(axis=1) == truth[known]).mean())
        baseline = LogisticRegression(max_iter=1000).fit(rows, targets)
        theirs.append((baseline.predict(test[known]) == truth[known]).mean())
        score = instant.ood_score(test)
        scores.append(detection(score[known], score[~known])["auroc"] or 0.0)
        unit, anchors = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (test, rows))
        plain = 1 - (unit @ anchors.T).max(axis=1)
        simple.append(detection(plain[known], plain[~known])["auroc"] or 0.0)
    assert np.mean(ours) > np.mean(theirs) - 0.02
    assert np.mean(scores) > np.mean(simple) + 2


def test_the_threshold_keeps_95_percent_of_the_known_and_moves_with_accept() -> None:
    for seed in range(3):
        world = World(seed)
        instant = fitted(world, [30] * 4, [60] * 6)
        scores = instant.ood_score(world.draw([200] * 4)[0])
        assert 0.88 < (scores <= instant.threshold()).mean() <= 1
        assert instant.threshold(0.5) < instant.threshold(0.95) <= instant.threshold(0.99)
        assert 0.4 < (scores <= instant.threshold(0.5)).mean() < 0.8
    with pytest.raises(UserError, match=r"accept=1\.5"):
        instant.threshold(1.5)


@pytest.mark.parametrize(("known", "foreign"), [(100, 0), (50, 100), (15, 170)])
def test_the_share_of_the_pile_that_belongs_is_estimated(known: int, foreign: int) -> None:
    world = World(0)
    rows, targets = world.draw([20] * 4)
    pile, truth = world.draw([known] * 4 + [foreign] * 2)
    instant = fit_instant(rows, targets, pile, NAMES)
    assert abs(instant.share(instant.ood_score(pile)) - (truth < 4).mean()) < 0.15


def test_the_cross_validated_accuracy_is_near_the_true_one_and_its_interval_holds_it() -> None:
    held = []
    for seed in range(6):
        world = World(seed, noise=2.2)
        instant = fitted(world, [15] * 4, [40] * 6)
        test, truth = world.draw([200] * 4)
        true = (instant.predict_proba(test).argmax(axis=1) == truth).mean() * 100
        estimate = instant.estimate
        assert estimate is not None
        assert estimate.images == 60
        assert estimate.accuracy == pytest.approx(estimate.correct / 60 * 100)
        assert (estimate.low, estimate.high) == pytest.approx(wilson_interval(estimate.correct / 0.6, 60))
        held.append(estimate.low - 3 <= true <= estimate.high + 3)
    assert sum(held) >= 5


def test_probabilities_are_calibrated() -> None:
    for seed in range(3):
        world = World(seed, noise=2.2)
        instant = fitted(world, [25] * 4, [50] * 6)
        test, truth = world.draw([300] * 4)
        probabilities = instant.predict_proba(test)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert (expected_calibration_error(np.log(probabilities), truth) or 0) < 12


def test_239_of_one_class_do_not_drown_15_of_another() -> None:
    world = World(0, noise=2.0)
    rows, targets = world.draw([239, 15])
    instant = fit_instant(rows, targets, world.draw([60, 60, 0, 0, 60, 60])[0], NAMES[:2])
    test, truth = world.draw([300, 300])
    right = instant.predict_proba(test).argmax(axis=1) == truth
    assert right[truth == 1].mean() > 0.85
    assert right[truth == 0].mean() > 0.85
    accepted = instant.ood_score(test) <= instant.threshold()
    assert accepted[truth == 1].mean() > 0.7
    assert instant.estimate is not None
    assert instant.estimate.images == 254


def test_one_image_per_class_gives_an_answer_without_estimates() -> None:
    world = World(0)
    instant = fitted(world, [1] * 4, [50] * 6)
    assert instant.estimate is None
    assert math.isfinite(instant.threshold())
    test, truth = world.draw([50] * 4)
    assert (instant.predict_proba(test).argmax(axis=1) == truth).mean() > 0.6


def test_a_class_with_one_image_is_never_held_out() -> None:
    world = World(0)
    instant = fitted(world, [1, 10, 10, 10], [50] * 6)
    assert instant.estimate is not None
    assert instant.estimate.images == 30
    assert len(instant.id_scores) == 30


def test_an_empty_or_tiny_pile_means_labels_alone() -> None:
    for pile in (0, 1):
        world = World(0)
        rows, targets = world.draw([10] * 4)
        instant = fit_instant(rows, targets, world.draw([pile])[0], NAMES)
        assert instant.neighbors == 0
        test, truth = world.draw([50] * 4)
        assert (instant.predict_proba(test).argmax(axis=1) == truth).mean() > 0.9
    assert math.isnan(instant.share(np.empty(0)))
    rows, targets = World(0).draw([1, 1])
    assert fit_instant(rows, targets, rows[:0], NAMES[:2]).threshold() == math.inf


def test_half_precision_memory_maps_are_taken_as_they_are() -> None:
    world = World(0)
    rows, targets = world.draw([5] * 4)
    pile, _ = world.draw([30] * 6)
    exact = fit_instant(rows, targets, pile, NAMES)
    half = fit_instant(rows.astype(np.float16), targets, pile.astype(np.float16), NAMES)
    np.testing.assert_allclose(half.ood_score(pile), exact.ood_score(pile), atol=0.01)
    assert half.ood_score(pile[:0]).shape == (0,)
    assert half.predict_proba(pile[:0]).shape == (0, 4)


@pytest.mark.parametrize("rows", [30, 100])
@pytest.mark.parametrize("classes", [2, 4])
def test_the_head_is_scikit_learns_in_fewer_dimensions(rows: int, classes: int) -> None:
    random = np.random.default_rng(0)
    features = centered(tensor(random.normal(size=(rows, 50))), torch.zeros(50)).numpy()
    labels = np.arange(rows) % classes
    weight, bias = fit_head(features, labels, classes, 5.0)
    model = LogisticRegression(C=5.0, class_weight="balanced", max_iter=2000, tol=1e-6).fit(features, labels)
    test = random.normal(size=(20, 50)).astype(np.float32) / 7
    np.testing.assert_allclose(softmax(test @ weight.T + bias), model.predict_proba(test), atol=2e-3)


def test_a_pile_is_asked_and_held_out_labels_are_scored_as_if_they_lay_in_it() -> None:
    world = World(1, dim=8)
    rows, targets = world.draw([7, 3])
    pile, _ = world.draw([15] * 4)
    instant = fit_instant(rows, targets, pile, NAMES[:2])
    test = tensor(world.draw([2, 2, 2])[0])
    labels = torch.from_numpy(targets)
    np.testing.assert_allclose(
        instant.ood_score(test.numpy()), ask_pool(tensor(rows), labels, tensor(pile), 2).score(test)
    )
    folds = folds_of(targets, np.bincount(targets), np.random.default_rng(0))
    for i, fold in enumerate(folds):
        out = folds == fold
        asked = ask_pool(tensor(rows[~out]), labels[~out], tensor(np.concatenate([pile, rows[out]])), 2)
        assert instant.id_scores[i] == pytest.approx(float(asked.score(tensor(rows[i : i + 1]))), abs=1e-4)


def test_with_few_unlabeled_images_labels_are_left_out_one_by_one() -> None:
    world = World(1, dim=8)
    rows, targets = world.draw([7, 3])
    pile, _ = world.draw([7] * 4)
    instant = fit_instant(rows, targets, pile, NAMES[:2])
    assert len(pile) < LEAST_PILE and instant.asked is None and instant.neighbors == 0  # noqa: PT018

    def unit(x: np.ndarray) -> np.ndarray:
        row: np.ndarray = x / np.linalg.norm(x)
        return row

    mean = np.concatenate([rows, pile]).astype(np.float64).mean(axis=0)
    z = [unit(x - mean) for x in rows.astype(np.float64)]

    def score(x: np.ndarray, labeled: list[np.ndarray], labels: np.ndarray) -> float:
        best = -2.0
        for c in range(2):
            members = [row for row, label in zip(labeled, labels, strict=True) if label == c]
            cosines = sorted((float(x @ row) for row in members), reverse=True)[:5]
            best = max(best, (float(x @ unit(np.sum(members, axis=0))) + float(np.mean(cosines))) / 2)
        return 1 - best

    test, _ = world.draw([2, 2, 2])
    expected = [score(unit(x - mean), z, targets) for x in test.astype(np.float64)]
    np.testing.assert_allclose(instant.ood_score(test), expected, atol=1e-5)
    left_out = [score(z[i], z[:i] + z[i + 1 :], np.delete(targets, i)) for i in range(10)]
    np.testing.assert_allclose(instant.id_scores, left_out, atol=1e-5)


def test_without_neighbours_the_score_is_the_distance_to_the_nearest_class() -> None:
    labeled = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    rows = np.array([[1.0, 0.0], [math.sqrt(0.5), math.sqrt(0.5)], [-1.0, 0.0]], np.float32)
    members = tensor(labeled)
    found = distance(tensor(rows) @ members.T, lengths(members, [1, 1]), [1, 1])
    np.testing.assert_allclose(found, [0, 1 - math.sqrt(0.5), 1], atol=1e-6)


def test_nearest_finds_the_largest_cosines() -> None:
    random = np.random.default_rng(0)
    rows, references = random.normal(size=(5, 4)), random.normal(size=(30, 4))
    found = nearest(tensor(rows), tensor(references), 3)
    for row, places in zip(rows, found.tolist(), strict=True):
        assert set(places) == set(np.argsort(-(references @ row))[:3])


def test_one_class_or_a_class_without_images_is_a_mistake_of_the_user() -> None:
    rows = np.ones((3, 4), np.float32)
    with pytest.raises(UserError, match="at least two classes"):
        fit_instant(rows, np.zeros(3, int), rows[:0], ["cat"])
    with pytest.raises(UserError, match="'dog' has no readable image"):
        fit_instant(rows, np.zeros(3, int), rows[:0], ["cat", "dog"])


def test_images_that_are_all_the_same_do_no_harm() -> None:
    rows = np.ones((6, 4), np.float32)
    instant = fit_instant(rows, np.array([0, 1] * 3), np.ones((30, 4), np.float32), NAMES[:2])
    assert np.isfinite(instant.ood_score(rows)).all()
    assert np.isfinite(instant.predict_proba(rows)).all()


def test_what_a_person_said_of_the_pile_decides_and_hardly_depends_on_the_order(tmp_path: Path) -> None:
    """Ten labels of each class, ten of the unknown kinds; the model keeps its cut when it is written and read."""
    world = World(7, noise=1.5)
    (rows, targets), (pile, truth), (none, _) = (
        world.draw([10] * 4),
        world.draw([30] * 6),
        world.draw([0] * 4 + [5] * 2),
    )
    usual = fit_instant(rows, targets, pile, NAMES, none=none)
    assert usual.cut is None
    found = fit_instant(rows, targets, pile, NAMES, none=none, asked_person=True)
    assert found.cut is not None
    assert 0.2 < found.cut < 0.8
    inside = found.ood_score(pile) <= found.threshold()
    assert inside[truth < 4].mean() > 0.9
    assert inside[truth > 3].mean() < 0.1
    limits = [found.threshold(share) for share in (0.5, 0.8, 0.95, 0.96, 0.99)]
    assert limits == sorted(limits)
    assert limits[2] == found.cut
    assert found.belonging is not None
    assert abs(found.belonging.share - 2 / 3) < 0.08
    assert found.belonging.low <= found.belonging.share <= found.belonging.high
    order = np.random.default_rng(0).permutation(len(rows))
    again = fit_instant(rows[order], targets[order], pile[::-1], NAMES, none=none, asked_person=True)
    np.testing.assert_allclose(again.ood_score(pile), found.ood_score(pile), atol=0.1)
    assert np.mean((again.ood_score(pile) <= again.threshold()) == inside) > 0.97
    assert again.cut == pytest.approx(found.cut, abs=0.1)
    PhotoModel(found, PLAIN).save(tmp_path)
    read, _, _ = read_model(tmp_path)
    assert read.cut == found.cut
    assert np.array_equal(read.ood_score(pile), found.ood_score(pile))


def test_very_few_words_on_what_is_unknown_leave_the_usual_threshold() -> None:
    world = World(8)
    (rows, targets), (pile, _), (none, _) = world.draw([20] * 4), world.draw([30] * 6), world.draw([0] * 4 + [1] * 2)
    assert len(rows) > BALANCED * len(none)
    assert fit_instant(rows, targets, pile, NAMES, none=none, asked_person=True).cut is None


def test_folds_do_not_depend_on_the_order_of_a_persons_answers() -> None:
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(24, 10)), np.repeat(np.arange(3), 8)
    order = generator.permutation(24)
    counts = np.bincount(labels)
    folds = folds_for(features, labels, counts, 0, asked_person=True)
    np.testing.assert_array_equal(folds_for(features[order], labels[order], counts, 0, asked_person=True), folds[order])
    usual = folds_of(labels, counts, np.random.default_rng(0))
    np.testing.assert_array_equal(folds_for(features, labels, counts, 0), usual)


def test_labels_of_a_whole_group_teach_but_do_not_say_how_known_images_are_scored() -> None:
    """Those nearest their center: with them the limit shuts out most of their own class; without, it lets it in."""
    world = World(3)
    rows, targets = world.draw([8, 8, 8, 40])
    last = np.flatnonzero(targets == 3)
    order = np.argsort(np.linalg.norm(rows[last] - world.centers[3], axis=1))
    rows[last[order[:8]]] = world.centers[3] + 0.4 * (rows[last[order[:8]]] - world.centers[3])  # they look alike
    chosen = np.concatenate([np.flatnonzero(targets < 3), last[order[:8]]])
    pile, truth = world.draw([60, 60, 60, 60, 60, 60])
    grouped = targets[chosen] == 3
    given = rows[chosen], targets[chosen], pile, NAMES
    usual, told = fit_instant(*given), fit_instant(*given, grouped=grouped)
    assert (len(usual.id_scores), len(told.id_scores)) == (32, 24)
    assert told.id_weights.sum() < usual.id_weights.sum()
    np.testing.assert_array_equal(told.weight, usual.weight)
    inside = [float((each.ood_score(pile) <= each.threshold())[truth == 3].mean()) for each in (usual, told)]
    assert inside[1] >= inside[0]
    everything = fit_instant(*given, grouped=np.ones(len(grouped), bool))
    np.testing.assert_array_equal(everything.id_scores, usual.id_scores)
