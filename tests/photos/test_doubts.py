"""Wrong labels are suspected, right ones are not, and what to label next is doubtful and diverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_instant import NAMES, World
from torch.utils._python_dispatch import TorchDispatchMode

from osp.models import instant as parts
from osp.photos.doubts import next_to_label, wrong_labels
from osp.photos.instant import fit_instant


def test_planted_wrong_labels_are_found_and_right_ones_left_alone() -> None:
    for seed in range(3):
        world = World(seed)
        rows, targets = world.draw([15] * 4)
        given = targets.copy()
        given[[3, 20, 50]] = [1, 2, 0]
        found = wrong_labels(fit_instant(rows, given, world.draw([40] * 6)[0], NAMES))
        assert {wrong.position for wrong in found} == {3, 20, 50}
        assert {wrong.position: wrong.suggestion for wrong in found} == {3: 0, 20: 1, 50: 3}
        assert [wrong.margin for wrong in found] == sorted((wrong.margin for wrong in found), reverse=True)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The largest tensor that is made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


def test_no_product_of_all_labels_with_all_is_ever_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50,000 labels it would take 10 GB; what is found is the same by any number of rows at once."""
    world = World(0)
    rows, targets = world.draw([80] * 4)
    targets[7] = 1
    whole = fit_instant(rows, targets, rows[:0], NAMES)
    expected = wrong_labels(whole)
    monkeypatch.setattr(parts, "_CHUNK", 16)
    with Largest() as seen:  # type: ignore[no-untyped-call]
        instant = fit_instant(rows, targets, rows[:0], NAMES)
        found = wrong_labels(instant)
    assert seen.numbers <= rows.size < len(rows) ** 2
    assert [wrong.position for wrong in found] == [wrong.position for wrong in expected] == [7]
    np.testing.assert_allclose(instant.id_scores, whole.id_scores, atol=1e-5)


def test_a_small_class_among_large_ones_is_not_suspected() -> None:
    world = World(0, noise=1.5)
    rows, targets = world.draw([200, 6])
    found = wrong_labels(fit_instant(rows, targets, world.draw([40, 40])[0], NAMES[:2]))
    assert not [wrong for wrong in found if wrong.label == 1]


def test_what_to_label_next_lies_between_classes_or_at_the_border_and_twins_are_asked_once() -> None:
    world = World(0, noise=1.5)
    rows, targets = world.draw([10] * 4)
    pile, _ = world.draw([40] * 4)
    middle = (world.centers[0] + world.centers[1]) / 2 + world.random.normal(size=(1, 64)) * 0.2
    pile = np.concatenate([pile, np.repeat(middle, 6, axis=0)]).astype(np.float32)
    instant = fit_instant(rows, targets, pile, NAMES)
    chosen = next_to_label(instant, pile, 10)
    positions = [item.position for item in chosen]
    assert len(set(positions)) == len(positions) == 10
    assert len([position for position in positions if position >= 160]) == 1
    (asked,) = [item for item in chosen if item.position >= 160]
    assert "a or b?" in asked.reason or "b or a?" in asked.reason or "none of the classes?" in asked.reason
    others = 1 - instant.predict_proba(pile).max(axis=1)
    assert np.mean(others[positions]) > np.mean(others)


def test_no_more_is_asked_than_there_is() -> None:
    world = World(0)
    rows, targets = world.draw([5] * 4)
    pile, _ = world.draw([2] * 4)
    instant = fit_instant(rows, targets, pile, NAMES)
    assert len(next_to_label(instant, pile, 100)) <= 8
    assert next_to_label(instant, pile[:0], 5) == []
    assert next_to_label(instant, pile, 0) == []
