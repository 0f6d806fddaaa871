"""Runs that are wanted: made from the cells of tables, each once, written down for tasks that start elsewhere, and how
long they will take on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osp.bench.store import Store
from osp.errors import UserError
from osp.plugins import plain_name
from osp.recipe import Plan, Recipe
from osp.recipe.code import as_fields, files_in


@dataclass(frozen=True)
class Job:
    """A run that is wanted."""

    recipe: Recipe
    plan: Plan
    name: str
    """Of its folder in the store."""
    keys: Mapping[str, str] | None = None

    def with_threads(self, threads: int) -> Job:
        """On so many CPU threads, where the user asked for no number."""
        if self.recipe.threads is not None or self.plan.threads is not None:
            return self
        return Job(self.recipe.changed(threads=threads), self.plan, self.name, self.keys)

    def anywhere(self) -> Job:
        """With paths that mean the same in any working folder, as on another machine."""
        files = {key: str(Path(name).absolute()) for key, name in files_in(self.recipe.asked()).items()}
        places: dict[str, Any] = {
            "data_dir": self.plan.data_dir,
            "ood_dir": self.plan.ood_dir,
            **as_fields(files, self.recipe.options),
        }
        return Job(self.recipe.changed(**places), self.plan, self.name, self.keys)

    def fields(self) -> dict[str, Any]:
        """As JSON can hold it."""
        keys = None if self.keys is None else dict(self.keys)
        return {
            "name": self.name,
            "recipe": self.recipe.asked(),
            "plan": self.plan.model_dump(mode="json"),
            "keys": keys,
        }

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Job:
        """What `fields` gave."""
        return cls(Recipe(**fields["recipe"]), Plan(**fields["plan"]), str(fields["name"]), fields["keys"])


def jobs_for(store: Store, recipes: Sequence[Recipe], plans: Sequence[Plan], keys: KeyCache | None = None) -> list[Job]:
    """The wanted runs, each once: tables share them."""
    found: dict[str, Job] = {}
    for recipe, plan in zip(recipes, plans, strict=True):
        content = keys.of(plan) if keys is not None else None
        name = store.folder_for(plan, content).path.name
        if name in found:  # the same run for two tables: tested on what either of them wants
            other = found[name]
            both = tuple(sorted({*other.plan.test_ood, *plan.test_ood}))
            recipe, plan = recipe.changed(test_ood=both), plan.changed(test_ood=both)
        found[name] = Job(recipe, plan, name, content)
    return list(found.values())


def unfinished(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """Those of them that the store lacks."""
    return [job for job in jobs if store.status(job.plan, job.keys) != "finished"]


class KeyCache:
    """Content keys of images, looked up once for each set; None where the images are not here."""

    def __init__(self, store: Store) -> None:
        self._known: dict[tuple[Any, ...], dict[str, str] | None] = {}
        self._names = store.names()

    def of(self, plan: Plan) -> dict[str, str] | None:
        if not any(name.startswith(f"{plain_name(plan.data)}-") for name in self._names):
            return None  # there is nothing to compare with
        where = (plan.data, plan.data_dir, plan.image_size, plan.ood_data, plan.ood_dir)
        key = (*where, plan.seed if plan.ood_data in ("gaussian", "uniform") else None)
        if key not in self._known:
            from osp.engine.data import content_keys

            try:
                self._known[key] = content_keys(plan)
            except UserError:
                self._known[key] = None
        return self._known[key]


# How long they take

PASSES = {"supervised": 1.0}
USUAL_PASSES = 8.0
"""Images through the network per labeled image of a step: five unlabeled ones, some in two views."""
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
    """One image forward and backward through the network on one core, in processor time: other load does not count."""
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
