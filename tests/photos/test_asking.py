"""What a person is asked, and what the answers say, on points where the truth is known."""

from __future__ import annotations

import numpy as np
import torch

from osp.parts.clusters import fit_clusters
from osp.photos.asking import LEAST_GROUP, NONE, OPEN, SHOWN, ask_person, guess, lay_out, next_question, strip

KINDS = 4
EACH = 40


def points() -> tuple[np.ndarray, np.ndarray]:
    """Four kinds, well apart; kinds 2 and 3 will be none of the classes."""
    draws = np.random.default_rng(0)
    truth = np.arange(KINDS * EACH) % KINDS
    return (np.eye(24)[truth] * 3 + draws.normal(size=(len(truth), 24)) * 0.4).astype(np.float16), truth


def test_a_few_labels_say_what_all_others_are_and_undoing_gives_the_same_bits() -> None:
    features, truth = points()
    layout = lay_out(features)
    labels = np.full(len(truth), OPEN)
    labels[:8] = np.where(truth[:8] < 2, truth[:8], NONE)
    first = guess(layout, labels, 2)
    rest = labels == OPEN
    known = rest & (truth < 2)
    assert first.inside[known].mean() > 0.95
    assert (first.classes[known] == truth[known]).mean() > 0.95
    assert (~first.inside[rest & (truth > 1)]).mean() > 0.95
    assert first.unknown[known].mean() < first.unknown[rest & (truth > 1)].mean()
    labels[50] = 1 - truth[50] if truth[50] < 2 else 0
    assert not np.array_equal(guess(layout, labels, 2).sure, first.sure)
    labels[50] = OPEN
    assert np.array_equal(guess(layout, labels, 2).sure, first.sure)


def test_labels_travel_along_neighbors_as_in_a_slow_loop() -> None:
    """Without clusters' say: the formula, image by image."""
    features, truth = points()
    layout = lay_out(features[:30])
    labels = np.full(30, OPEN)
    labels[:4] = (0, 1, NONE, NONE)
    fixed = np.zeros((30, 3))
    fixed[[0, 1, 2, 3], [0, 1, 2, 2]] = 1
    mass = fixed.copy()
    for _ in range(15):
        new = np.array([0.9 * sum(mass[j] for j in near) / len(near) for near in layout.near.tolist()])
        new[:4] = fixed[:4]
        mass = new
    found = guess(layout, labels, 2)
    clear = np.abs(mass[:, :2].max(axis=1) - mass[:, 2]) > 0.1
    assert clear.sum() > 10
    assert np.array_equal(found.against[clear] < 0.5, (mass[:, :2].max(axis=1) > mass[:, 2])[clear])
    assert truth[0] == 0
    mean = [np.mean([found.against[j] for j in (i, *near[:9])]) for i, near in enumerate(layout.near.tolist())]
    limit, spread = layout.usual
    far = [max((each - limit) / spread, 0) for each in layout.lonely.tolist()]
    np.testing.assert_allclose(found.unknown, np.add(mean, far), atol=1e-5)
    assert np.array_equal(found.inside, found.unknown <= 0.5)


def test_the_score_of_a_run_is_what_the_page_says_of_the_same_photos_and_far_ones_are_unknown() -> None:
    features, truth = points()
    labels = np.full(len(truth), OPEN)
    labels[:16] = np.where(truth[:16] < 2, truth[:16], NONE)
    layout = lay_out(features, grouped=False)
    assert layout.groups == []
    rows, known = torch.from_numpy(features).float(), torch.from_numpy(labels >= 0)
    clusters = fit_clusters(rows[known], torch.from_numpy(labels)[known], rows[labels == OPEN], 2)
    asked = ask_person(layout, labels, 2, clusters)
    np.testing.assert_allclose(asked.score(rows).numpy(), guess(layout, labels, 2).unknown, atol=1e-3)
    assert asked.score(-rows[:16]).mean() > 0.5


def test_groups_come_first_each_once_then_the_least_sure_photo_then_nothing() -> None:
    features, truth = points()
    layout = lay_out(features)
    assert all((truth[group[:SHOWN]] == truth[group[0]]).all() for group in layout.groups)
    labels, shown = np.full(len(truth), OPEN), set[int]()
    asked: list[int] = []
    while (question := next_question(layout, guess(layout, labels, 2 if asked else 0), labels, shown)) is not None:
        rows = question.rows
        asked.append(len(rows))
        labels[rows] = np.where(truth[rows] < 2, truth[rows], NONE)
        if asked == [SHOWN]:
            labels[:2], labels[rows] = (0, 1), NONE
        shown.update(rows.tolist())
    groups = [count for count in asked if count > 1]
    assert groups == asked[: len(groups)]
    assert len(groups) == len([group for group in layout.groups if len(group) >= LEAST_GROUP])
    assert (labels > OPEN).all()


def test_a_skipped_group_is_not_asked_again_and_its_photos_come_last() -> None:
    features, _ = points()
    layout = lay_out(features)
    labels, shown = np.full(len(features), OPEN), set[int]()
    nothing = guess(layout, labels, 0)
    for _ in layout.groups:
        question = next_question(layout, nothing, labels, shown)
        assert question is not None
        assert not shown & set(question.rows.tolist())
        shown.update(question.rows.tolist())
    single = next_question(layout, nothing, labels, shown)
    assert single is not None
    assert len(single.rows) == 1
    assert int(single.rows[0]) not in shown


def test_a_strip_shows_the_most_unknown_photos_of_a_class_first() -> None:
    features, truth = points()
    layout = lay_out(features)
    labels = np.full(len(truth), OPEN)
    labels[:4] = (0, 1, NONE, NONE)
    found = guess(layout, labels, 2)
    question = strip(found, labels, 0)
    assert question.guess == 0
    assert (np.diff(found.unknown[question.rows]) <= 0).all()
    others = np.setdiff1d(np.flatnonzero(found.inside & (found.classes == 0) & (labels == OPEN)), question.rows)
    assert found.unknown[others].max() <= found.unknown[question.rows].min()


def test_very_few_photos_give_numbers() -> None:
    for count in (1, 2, 3, 7):
        layout = lay_out(points()[0][:count])
        labels = np.full(count, OPEN)
        labels[0] = 0
        found = guess(layout, labels, 1)
        assert np.isfinite(found.unknown).all()
        assert torch.isfinite(layout.rows).all()
