"""How long a run will take is told by runs like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.stores import finished, plan_of
from osp.bench.jobs import START, Expected
from osp.bench.store import Store


def test_recorded_seconds_are_scaled_by_steps_and_runs_that_are_too_short_tell_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    finished(store, plan_of(steps=100), seconds=50.0, steps=100)
    finished(store, plan_of(steps=2), seconds=1000.0, steps=2)
    assert Expected(store).seconds(plan_of(steps=200)) == pytest.approx(START + 100)
    assert Expected(store).total([plan_of(steps=200)] * 3, workers=2) == pytest.approx(1.5 * (START + 100))


def test_without_records_it_is_measured_and_a_method_that_sees_more_images_takes_longer(tmp_path: Path) -> None:
    expected = Expected(Store(tmp_path / "store"))
    plain, more = (expected.seconds(plan_of(method=name, steps=1000)) for name in ("supervised", "fixmatch"))
    assert START < plain < more
