"""Stages, learning rates and refreshes against their formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osp import UserError
from osp.engine.schedule import Timetable, learning_rate, refreshes
from osp.methods import Stage


def test_cosine_7_16_falls_from_the_rate_to_a_fifth_of_it() -> None:
    stage = Stage(lr=0.03, schedule="cosine-7/16")
    steps = 100_000
    assert learning_rate(stage, 0, steps) == 0.03
    assert learning_rate(stage, steps // 2, steps) == pytest.approx(0.03 * math.cos(7 * math.pi / 32))
    assert learning_rate(stage, steps - 1, steps) / 0.03 == pytest.approx(0.195, abs=5e-4)


def test_cosine_falls_to_nothing_and_constant_stays() -> None:
    cosine = Stage(lr=2.0, schedule="cosine")
    assert [learning_rate(cosine, t, 4) for t in range(4)] == pytest.approx([2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5])
    assert {learning_rate(Stage(lr=0.1, schedule="constant"), t, 9) for t in range(9)} == {0.1}


def test_steps_drop_where_their_share_of_the_stage_has_passed() -> None:
    stage = Stage(lr=1.0, schedule="steps", drops=(0.8,), drop_factor=0.2)
    assert [learning_rate(stage, t, 10) for t in range(10)] == [1.0] * 8 + [0.2] * 2
    twice = Stage(lr=1.0, schedule="steps", drops=(0.5, 0.75), drop_factor=0.1)
    assert [learning_rate(twice, t, 8) for t in range(8)] == pytest.approx([1.0] * 4 + [0.1] * 2 + [0.01] * 2)


@given(
    shares=st.lists(st.floats(0.01, 10), min_size=1, max_size=7),
    surplus=st.integers(0, 500),
)
def test_every_stage_gets_a_step_and_about_its_share(shares: list[float], surplus: int) -> None:
    total = len(shares) + surplus
    table = Timetable.make([Stage(name=str(k), share=share) for k, share in enumerate(shares)], total, seed=0)
    steps = [table.step(index) for index in range(total)]
    lengths = [sum(step.stage_index == k for step in steps) for k in range(len(shares))]
    assert min(lengths) >= 1
    assert sum(lengths) == total
    assert [step.stage_index for step in steps] == sorted(step.stage_index for step in steps)
    for step in steps:
        assert step.stage_steps == lengths[step.stage_index]
        assert step.stage_step == step.index - sum(lengths[: step.stage_index])
        assert 0 <= step.progress < 1
    for length, share in zip(lengths, shares, strict=True):
        assert abs(length - total * share / sum(shares)) <= len(shares) + 1


def test_shares_are_kept_in_a_run_of_any_length() -> None:
    stages = [Stage(share=0.2), Stage(share=0.8)]
    assert [Timetable.make(stages, total, 0).starts for total in (10, 250_000, 2)] == [(0, 2), (0, 50_000), (0, 1)]


def test_fewer_steps_than_stages_are_refused() -> None:
    with pytest.raises(UserError, match=r"steps: 2 is too few; the method has 3 stages"):
        Timetable.make([Stage(), Stage(), Stage()], 2, seed=0)


@given(steps=st.integers(1, 300), share=st.floats(0.001, 1.0))
def test_refreshes_fall_on_the_rounded_multiples_of_their_share(steps: int, share: float) -> None:
    table = Timetable.make([Stage(share=1), Stage(share=1, refresh=share)], 2 * steps, seed=0)
    found = [index for index in range(2 * steps) if refreshes(table.step(index))]
    interval = max(share * steps, 1.0)
    expected = {steps + round(k * interval) for k in range(steps + 1)}
    assert found == sorted(index for index in expected if index < 2 * steps)
    assert found[0] == steps


def test_a_stage_without_refresh_has_none() -> None:
    table = Timetable.make([Stage()], 50, seed=0)
    assert not any(refreshes(table.step(index)) for index in range(50))


def test_ramps_follow_their_formulas() -> None:
    table = Timetable.make([Stage()], 10, seed=0)
    linear = [table.step(t).linear_ramp(0.5) for t in range(10)]
    assert linear == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1])
    sigmoid = [table.step(t).sigmoid_ramp(0.5) for t in range(10)]
    assert sigmoid == pytest.approx([math.exp(-5 * (1 - value) ** 2) for value in linear])
    assert table.step(0).linear_ramp(0) == table.step(0).sigmoid_ramp(0) == 1.0


def test_the_rate_rises_over_the_warm_up_and_then_follows_its_schedule() -> None:
    stage = Stage(lr=1.0, schedule="constant", warmup=0.1)
    assert [round(learning_rate(stage, t, 40), 4) for t in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert learning_rate(Stage(lr=1.0, schedule="constant"), 0, 40) == 1.0


def test_a_stage_that_continues_shares_the_schedule_of_the_first() -> None:
    one = Timetable.make([Stage(lr=1.0, warmup=0.1)], 100, seed=0)
    two = Timetable.make([Stage(lr=1.0, warmup=0.1, share=0.9), Stage(lr=5.0, share=0.1, continues=True)], 100, seed=0)
    apart = Timetable.make([Stage(lr=1.0, share=0.9), Stage(lr=5.0, share=0.1)], 100, seed=0)
    assert [two.rate(two.step(t)) for t in range(100)] == [one.rate(one.step(t)) for t in range(100)]
    assert apart.rate(apart.step(90)) == 5.0
