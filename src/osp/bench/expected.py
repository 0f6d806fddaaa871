"""How long runs will take on this machine: from recorded seconds where there are any, else from a quick measurement."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from osp.bench.store import Store
from osp.recipe import Plan

PASSES = {"supervised": 1.0}
USUAL_PASSES = 8.0
"""Images through the network per labelled image of a step: five unlabelled ones, some in two views."""
START = 4.0
"""Seconds to start a process and open the data."""
SHORTEST = 4
"""A recorded run must have at least this part of the steps."""


class Expected:
    """Seconds of a run, by what the store knows of such runs and by the cost of one image."""

    def __init__(self, store: Store) -> None:
        self._known: list[tuple[Plan, float, float]] = []
        self._measured: dict[tuple[str, str], float] = {}
        for run in store.runs():
            seconds, steps = run.result.get("seconds"), run.result.get("steps")
            if seconds and steps:
                self._known.append((run.plan, float(steps), float(seconds)))

    def seconds(self, plan: Plan) -> float:
        """Of one run. Runs much shorter than it tell nothing: they spend their time on the final test."""
        similar = [
            (other, seconds / steps)
            for other, steps, seconds in self._known
            if (other.data, other.network) == (plan.data, plan.network) and steps >= plan.steps / SHORTEST
        ]
        if exact := [each for other, each in similar if other.method == plan.method]:
            return START + statistics.median(exact) * plan.steps
        if similar:
            image = statistics.median(each / images(other) for other, each in similar)
            return START + image * images(plan) * plan.steps
        key = (plan.data, plan.network)
        if key not in self._measured:
            self._measured[key] = seconds_per_image(plan)
        return START + self._measured[key] * images(plan) * plan.steps

    def total(self, plans: Iterable[Plan], workers: int) -> float:
        return sum(map(self.seconds, plans)) / max(1, workers)


def images(plan: Plan) -> float:
    """Images through the network in a step, roughly."""
    return float(plan.options.get("batch", 64)) * PASSES.get(plan.method, USUAL_PASSES)


SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28)}


def seconds_per_image(plan: Plan) -> float:
    """One image forth and back through the network on one core, in processor time: a busy machine does not count."""
    import torch

    from osp.nets import build_network

    shape = SHAPES.get(plan.data, (3, 32, 32))
    net = build_network(plan.network, shape, 10)
    batch = torch.zeros(64, *shape)
    threads, taken = torch.get_num_threads(), []
    torch.set_num_threads(1)  # several would wait for one another where the cores are not free
    try:
        for _ in range(3):
            started = time.process_time()
            net(batch).sum().backward()
            taken.append(time.process_time() - started)
    finally:
        torch.set_num_threads(threads)
    return min(taken) / len(batch)
