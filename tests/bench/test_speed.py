"""The benchmark measures what it says; how fast things are is not tested here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from osp.bench import speed
from osp.bench.speed import AS_PUBLISHED, forms, growth, measure, peak_memory, speed_tables, step_cost
from osp.bench.workload import CASES, Bare, Case, Ours, images_of
from osp.plugins import load_file

TINY = Case("cnn", (1, 8, 8), classes=3, batch=4, mu=2, rotation=4, pool=64)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)  # what runs here leaves the test process as it was
    monkeypatch.setitem(CASES, "cnn", TINY)


class Clock:
    """Stands for the module `time`: it goes on only when something takes time, so a busy machine changes nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def taking(self, *seconds: float) -> Callable[[], None]:
        """A function whose calls take these seconds, one after the other."""
        left = iter(seconds)

        def call() -> None:
            self.now += next(left)

        return call


def test_the_median_and_the_spread_are_those_of_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Clock(monkeypatch).taking(9.0, 9.0, 0.01, 0.03, 0.02)  # one call to warm up, one to see how long it takes
    found = measure({"wait": wait}, 3, at_least=0.0)["wait"]
    assert found == pytest.approx({"least": 0.01, "median": 0.02, "most": 0.03})


def test_the_functions_take_turns_and_each_turn_lasts_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = Clock(monkeypatch), []

    def call(name: str, seconds: float) -> None:
        order.append(name)
        clock.now += seconds

    found = measure({"quick": lambda: call("quick", 0.25), "slow": lambda: call("slow", 2.0)}, 2, at_least=1.0)
    assert order == ["quick"] * 2 + ["slow"] * 2 + (["quick"] * 4 + ["slow"]) * 2
    assert (found["quick"]["median"], found["slow"]["median"]) == (0.25, 2.0)


def test_our_step_and_the_bare_computation_take_the_same_images_through_the_network(tmp_path: Path) -> None:
    ours, bare = Ours(TINY, tmp_path), Bare(TINY)
    counted = [images_of(ours, ours.loop.method.net), images_of(bare, bare.net)]
    assert counted[0] == counted[1] == {"with gradient": TINY.with_gradient, "without": TINY.without_gradient}
    assert (TINY.with_gradient, TINY.without_gradient) == (4 + 8 + 16, 8)


def test_the_published_step_takes_every_image_through_forward_and_backward(tmp_path: Path) -> None:
    published: Any = forms()["as published"](TINY, tmp_path)
    before = [parameter.detach().clone() for parameter in published.net.parameters()]
    assert images_of(published, published.net) == {"with gradient": (4 + 8) + 4 + 8 + 16, "without": 0}
    assert any(not torch.equal(a, b) for a, b in zip(before, published.net.parameters(), strict=True))


def test_our_measured_step_trains_with_a_bank_in_use(tmp_path: Path) -> None:
    ours = Ours(TINY, tmp_path)
    bank: Any = ours.loop.method.bank
    assert bank.counts.sum() > 0
    before = [parameter.detach().clone() for parameter in ours.loop.method.parameters()]
    ours()
    assert any(not torch.equal(a, b) for a, b in zip(before, ours.loop.method.parameters(), strict=True))
    assert ours.loop.timetable.step(ours.loop.at.done).stage.name == "finetune"


def test_the_parts_leave_the_network_as_it_was(tmp_path: Path) -> None:
    ours = Ours(TINY, tmp_path)
    for part in ours.parts().values():
        part()
    images = torch.zeros(2, *TINY.shape)
    assert ours.loop.method.net.encode(images).shape == (2, ours.loop.method.net.feature_dim)
    assert "encode" not in vars(ours.loop.method.net)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16)])
def test_pillow_views_are_normalised_images_of_the_shape(shape: tuple[int, int, int]) -> None:
    forms()
    published = load_file(str(AS_PUBLISHED), "benchmark")
    labeled, targets, weak, strong, rotated = published.PillowViews(TINY.changed(shape=shape))[0]
    assert [len(each) for each in (labeled, targets, weak, strong, rotated)] == [4, 4, 8, 8, 4]
    for views in (labeled, weak, strong, rotated):
        assert views.shape[1:] == shape
        assert -1 <= views.min() < views.max() <= 1


def test_a_large_pool_takes_no_disk_to_speak_of(tmp_path: Path) -> None:
    from osp.engine.data import random_data

    data = random_data((1, 16, 16), 3, 1_000_000, tmp_path)
    file = next(tmp_path.glob("pool-*.npy"))
    assert file.stat().st_size > 250_000_000
    assert file.stat().st_blocks * 512 < 20_000_000
    assert data.train.take(np.array([len(data.train) - 1])).shape == (1, 1, 16, 16)


def test_the_table_and_the_files_show_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "GROWTH_CASE", TINY)
    monkeypatch.setattr(growth, "__defaults__", ({"batch": [2, 4], "pool": [20, 40]},))
    monkeypatch.setattr(speed, "peak_memory", lambda form, network: 12.0)
    found = speed.speed(["cnn"], 1, tmp_path / "out", with_growth=True, say=lambda text: None)
    assert json.loads((tmp_path / "out" / "speed.json").read_text()) == json.loads(json.dumps(found))
    assert (tmp_path / "out" / "speed.png").stat().st_size > 1000
    cost = found["step"]["cnn"]
    assert cost["ours / bare"] == pytest.approx(cost["seconds"]["ours"]["median"] / cost["seconds"]["bare"]["median"])
    assert set(cost["seconds"]) == {"ours", "bare", "as published"}
    shown = speed_tables(found)
    assert f"| {cost['ours / bare']:.2f} |" in shown
    assert "| 40 |" in shown
    assert shown.startswith(
        "| network | ours (s) | bare (s) | as published (s) | ours / bare | as published / ours | au"
    )
    del cost["seconds"]["as published"], cost["as published / ours"]
    assert speed_tables(found).startswith("| network | ours (s) | bare (s) | ours / bare | augmentation |")


def test_without_a_clone_there_is_no_published_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "AS_PUBLISHED", tmp_path / "none.py")
    assert set(forms()) == {"ours", "bare"}


def test_memory_is_that_of_a_process_of_its_own() -> None:
    assert 1 < peak_memory("bare", "cnn") < 2000


@pytest.mark.slow
def test_the_share_of_pool_passes_is_that_in_a_default_run(tmp_path: Path) -> None:
    cost = step_cost(TINY, tmp_path, 1, lambda text: None)
    share = next(value for name, value in cost["pool pass"].items() if name.startswith("share"))
    assert cost["pool pass"]["passes"] == 10  # of a small pool
    passes, steps = 10 * cost["pool pass"]["seconds"], 1500 * cost["seconds"]["ours"]["median"]
    assert share == pytest.approx(passes / (passes + steps))
