"""How long a run will take is told by runs like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.stores import finished, plan_of
from osp.bench.jobs import START, Expected, KeyCache
from osp.bench.sheets import counted
from osp.bench.store import Store
from osp.recipe import Recipe

SEEDED = """
import numpy as np
from osp.data import ImageSet, Source, SplitDefaults

def load(request):
    draws = np.random.default_rng(request.seed)
    sets = [draws.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8) for count in (120, 30)]
    facts = ("a", "b", "c"), (0.5,), (0.3,)
    return tuple(ImageSet(request.name, each, np.arange(len(each)) % 3, *facts) for each in sets)

SOURCE = Source(load=load, grey=True, within=SplitDefaults((0, 1), 5, ood_ratio=0.5, val_per_class=5))
"""


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


def test_images_that_a_set_of_ones_own_makes_from_the_seed_are_looked_up_for_every_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(SEEDED)
    monkeypatch.setattr("osp.engine.data.content_keys", lambda plan: {plan.data: str(plan.seed)})
    for fields, keys in (({"data": str(tmp_path / "mine.py")}, 2), ({"ood_data": "uniform"}, 2), ({}, 1)):
        store = Store(tmp_path / f"store-{len(fields)}-{keys}")
        plans = [plan_of(seed=seed, **fields) for seed in (0, 1)]
        finished(store, plans[0])
        cache = KeyCache(store)
        assert len({str(cache.of(plan)) for plan in plans}) == keys


def test_to_look_at_stored_runs_no_data_set_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("osp.data.fetch.download", lambda *_: pytest.fail("fetched"))
    store, plan = Store(tmp_path / "store"), plan_of(data="mnist")
    finished(store, plan)
    assert KeyCache(store).of(plan) is None
    assert counted(Recipe(data="mnist")) == ()
