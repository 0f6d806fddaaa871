"""Batches drawn shard by shard: every row once per epoch, from few shards at a time, a function of (seed, step)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osp.data import shard_stream
from osp.data.shard_stream import ShardStream


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_stream, "MIXED", 50)


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
    assert np.mean([np.ptp(batch) for batch in batches]) > 30  # neighbours would be at most ten apart


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
