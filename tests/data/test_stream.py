"""Which rows make up a batch: a function of (seed, step), shard by shard where the images lie in shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osp.data import stream as streams
from osp.data.stream import ShardStream, Stream


def flat(stream: Stream, first: int, steps: int) -> np.ndarray:
    return np.concatenate([stream.rows(step) for step in range(first, first + steps)])


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 200), batch=st.integers(1, 150), seed=st.integers(0, 3))
def test_each_epoch_is_a_permutation(size: int, batch: int, seed: int) -> None:
    rows = flat(Stream("unlabeled", size, batch, seed), 0, -(-4 * size // batch))
    for epoch in range(4):
        assert np.array_equal(np.sort(rows[epoch * size : (epoch + 1) * size]), np.arange(size))


def test_epochs_differ_also_across_the_blocks_in_which_they_are_drawn() -> None:
    rows = flat(Stream("unlabeled", 1000, 100, 0), 0, 100).reshape(10, 1000)
    assert len({epoch.tobytes() for epoch in rows}) == 10
    large = flat(Stream("unlabeled", 5000, 100, 0), 0, 150).reshape(3, 5000)
    assert np.array_equal(np.sort(large, axis=1), np.tile(np.arange(5000), (3, 1)))
    assert len({epoch.tobytes() for epoch in large}) == 3


def test_sixty_labels_in_batches_of_64_are_seen_equally_often() -> None:
    rows = flat(Stream("labeled", 60, 64, 0), 0, 1500)
    assert np.bincount(rows).tolist() == [1600] * 60


def test_one_row_and_batches_much_larger_than_the_part() -> None:
    assert Stream("labeled", 1, 64, 0).rows(9).tolist() == [0] * 64
    rows = Stream("labeled", 3, 10_000, 0).rows(2)
    counts = np.bincount(rows)
    assert counts.max() - counts.min() <= 2  # a part of a permutation at either end


@settings(max_examples=50, deadline=None)
@given(step=st.integers(0, 10_000), world=st.integers(1, 8), batch=st.integers(1, 70))
def test_rank_slices_make_up_the_global_batch(step: int, world: int, batch: int) -> None:
    stream = Stream("unlabeled", 97, batch, 0)
    whole = np.full(batch, -1)
    for rank in range(world):
        whole[rank::world] = Stream("unlabeled", 97, batch, 0).rows(step, rank, world)
    assert np.array_equal(whole, stream.rows(step))
    assert stream.rows(step).dtype == np.int64


def test_a_batch_depends_on_the_step_and_not_on_what_was_asked_before() -> None:
    in_order = [Stream("unlabeled", 5000, 64, 7).rows(step) for step in range(300)]
    stream = Stream("unlabeled", 5000, 64, 7)
    for step in np.random.default_rng(0).permutation(300):
        assert np.array_equal(stream.rows(int(step)), in_order[step])


def test_names_and_seeds_give_different_streams() -> None:
    batches = [Stream(name, 1000, 64, seed).rows(0).tobytes() for name in ("labeled", "unlabeled") for seed in (0, 1)]
    assert len(set(batches)) == 4


def test_changing_a_batch_does_not_change_the_stream() -> None:
    stream = Stream("labeled", 10, 4, 0)
    first = stream.rows(0)
    first[:] = -1
    assert stream.rows(0).min() >= 0


def test_a_restriction_takes_effect_at_exactly_its_step() -> None:
    kept = np.arange(0, 1000, 3)
    stream, free = Stream("unlabeled", 1000, 64, 0), Stream("unlabeled", 1000, 64, 0)
    stream.restrict(kept, 5)
    assert np.array_equal(flat(stream, 0, 5), flat(free, 0, 5))
    rows = flat(stream, 5, 12)
    assert np.isin(rows, kept).all()
    assert np.array_equal(np.sort(rows[: len(kept)]), kept)  # the permutations begin anew at the restriction
    assert not np.isin(flat(free, 5, 12), kept).all()
    stream.restrict(None, 20)
    assert np.isin(flat(stream, 5, 15), kept).all()
    assert np.array_equal(np.sort(flat(stream, 20, 16)[:1000]), np.arange(1000))
    with pytest.raises(ValueError, match="step 4"):
        stream.rows(4)  # only the last change can be looked behind


def test_a_later_restriction_replaces_one_still_to_come() -> None:
    stream = Stream("unlabeled", 100, 10, 0)
    stream.restrict(np.arange(50), 8)
    stream.restrict(np.arange(50, 100), 4)
    assert flat(stream, 4, 10).min() >= 50


def test_a_restriction_is_a_set_of_rows_and_its_start_a_part_of_the_draw() -> None:
    a, b, c = (Stream("unlabeled", 1000, 64, 0) for _ in range(3))
    kept = np.arange(0, 1000, 3)
    a.restrict(kept, 5)
    b.restrict(np.concatenate([kept[::-1], kept[:4]]), 5)
    c.restrict(kept, 6)
    assert np.array_equal(a.rows(6), b.rows(6))
    assert not np.array_equal(a.rows(5), c.rows(6))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.empty(0, np.int64), "nothing to draw from"),
        (np.array([3, 10]), "3 to 10 given of 10"),
        (np.array([-1, 2]), "-1 to 2"),
        (np.ones(10, bool), "bool"),
    ],
)
def test_a_restriction_that_cannot_be_is_refused_and_changes_nothing(rows: np.ndarray, words: str) -> None:
    stream = Stream("unlabeled", 10, 4, 0)
    before = stream.rows(3)
    with pytest.raises(ValueError, match=words):
        stream.restrict(rows, 2)
    assert np.array_equal(stream.rows(3), before)


def test_nothing_to_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="size 0"):
        Stream("labeled", 0, 4, 0)


@pytest.mark.parametrize("changes", [[], [(4, 30)], [(4, 30), (9, None)], [(4, 30), (9, 20), (12, 10)]])
def test_state_carries_the_restriction(changes: list[tuple[int, int | None]]) -> None:
    stream = Stream("unlabeled", 100, 16, 0)
    for start, size in changes:
        stream.restrict(None if size is None else np.arange(size), start)
    state = stream.state()
    assert all(isinstance(value, np.ndarray) and value.dtype == np.int64 for value in state.values())
    resumed = Stream("unlabeled", 100, 16, 0)
    resumed.restrict(np.array([1, 2]), 3)
    resumed.load_state(state)
    for step in range(changes[-2][0] if len(changes) > 1 else 0, 40):
        assert np.array_equal(stream.rows(step), resumed.rows(step))


@pytest.mark.parametrize(("size", "batch", "steps"), [(1_000_000, 448, 2000), (2, 448, 2000), (60, 64, 5000)])
def test_every_position_is_drawn_once_and_many_at_a_time(
    size: int, batch: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: positions sorted a step are about those of a batch, in few calls, however large the part."""
    sorted_at_once: list[int] = []
    argsort = np.argsort

    def counted(numbers: np.ndarray, **how: Any) -> np.ndarray:
        sorted_at_once.append(numbers.size)
        return argsort(numbers, **how)

    monkeypatch.setattr(np, "argsort", counted)
    stream = Stream("unlabeled", size, batch, 0)
    for step in range(steps):
        stream.rows(step)
    assert min(sorted_at_once) >= max(size, 1000)
    assert steps * batch <= sum(sorted_at_once) < steps * batch + max(sorted_at_once)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MIXED", 50)


def stream(sizes: list[int], batch: int = 7, seed: int = 0) -> ShardStream:
    return ShardStream("pool", sum(sizes), batch, seed, np.cumsum([0, *sizes[:-1]]))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    batch=st.integers(1, 60),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_every_row_comes_once_in_each_epoch_also_of_some_rows_only(
    sizes: list[int], batch: int, seed: int, data: st.DataObject
) -> None:
    drawn, kept = stream(sizes, batch, seed), np.arange(sum(sizes))
    start = 0
    if data.draw(st.booleans()):
        kept = np.array(sorted(data.draw(st.sets(st.sampled_from(kept.tolist()), min_size=1))))
        start = data.draw(st.integers(0, 5))
        drawn.restrict(kept, start)
    epochs = 2
    steps = -(-epochs * len(kept) // batch)
    rows = np.concatenate([drawn.rows(start + step) for step in range(steps)])
    for epoch in range(epochs):
        np.testing.assert_array_equal(np.sort(rows[epoch * len(kept) : (epoch + 1) * len(kept)]), kept)


def test_a_batch_comes_from_few_shards_and_shards_from_all_over() -> None:
    sizes = [10] * 100
    drawn = stream(sizes, batch=25)
    batches = [np.unique(drawn.rows(step) // 10) for step in range(40)]
    assert max(map(len, batches)) <= 10  # blocks of five shards, and a batch may lie across two
    assert np.mean([np.ptp(batch) for batch in batches]) > 30  # neighbors would be at most ten apart


def test_what_a_step_draws_depends_on_seed_and_step_alone() -> None:
    sizes = [13, 40, 1, 77, 20]
    steps = np.random.default_rng(0).permutation(60)
    there, again = stream(sizes), stream(sizes)
    expected = {step: there.rows(step) for step in range(60)}
    for step in steps.tolist():
        np.testing.assert_array_equal(again.rows(step), expected[step])
        mine = np.concatenate([again.rows(step, rank, 2) for rank in range(2)])
        np.testing.assert_array_equal(np.sort(mine), np.sort(expected[step]))
    assert any((stream(sizes, seed=1).rows(step) != expected[step]).any() for step in range(3))


def test_it_goes_on_where_a_checkpoint_left_it() -> None:
    sizes = [30, 30, 30]
    whole, resumed = stream(sizes), stream(sizes)
    whole.restrict(np.arange(0, 90, 2), 4)
    resumed.load_state(whole.state())
    for step in range(4, 30):
        np.testing.assert_array_equal(whole.rows(step), resumed.rows(step))
