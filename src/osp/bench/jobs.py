"""Runs that are wanted: made from the cells of tables, each once, written down for tasks that start elsewhere, and how
long they will take on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from osp.bench.store import Store
from osp.errors import UserError
from osp.machine import duration
from osp.plugins import plain_name
from osp.recipe import Plan, Recipe
from osp.recipe.code import as_fields, files_in
from osp.runs.lines import LineRun


class Job(BaseModel):
    """A run that is wanted."""

    model_config = ConfigDict(frozen=True)

    plan: Plan
    name: str
    """Of its folder in the store."""
    keys: dict[str, str] | None = None

    def recipe(self, threads: int) -> dict[str, Any]:
        """What its process is given: on so many CPU threads, where the user asked for no number."""
        return self.plan.recipe if self.plan.threads is not None else {**self.plan.recipe, "threads": threads}

    def anywhere(self) -> Job:
        """With paths that mean the same in any working folder, as on another machine."""
        asked = self.plan.recipe
        files = {key: str(Path(name).absolute()) for key, name in files_in(asked).items()}
        places = {"data_dir": self.plan.data_dir, "ood_dir": self.plan.ood_dir}
        recipe = Recipe(**{**asked, **places, **as_fields(files, asked.get("options", {}))})
        return self.model_copy(update={"plan": self.plan.changed(recipe=recipe.asked())})


def jobs_for(store: Store, plans: Iterable[Plan], keys: KeyCache | None = None) -> list[Job]:
    """The wanted runs, each once: tables share them."""
    found: dict[str, Job] = {}
    for plan in plans:
        content = keys.of(plan) if keys is not None else None
        folder = store.folder_for(plan, content)
        name, wanted = folder.path.name, set(plan.test_ood)
        if name in found:  # the same run for two tables: tested on what either of them wants
            wanted |= set(found[name].plan.test_ood)
        tested = (folder.read_result() or {}).get("other_ood") or {} if isinstance(folder, LineRun) else {}
        if wanted - tested.keys():  # a line has no model to test: it is trained anew, and takes the line's place
            wanted |= tested.keys()
        if wanted != set(plan.test_ood):
            sets = sorted(wanted)
            plan = plan.changed(test_ood=sets, recipe={**plan.recipe, "test_ood": sets})
        found[name] = Job(plan=plan, name=name, keys=content)
    return list(found.values())


def unfinished(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """Those of them that the store lacks."""
    return [job for job in jobs if store.status(job.plan, job.keys) != "finished"]


class KeyCache:
    """Content keys of images, looked up once for each set, and for each seed where a set is made from it; None where
    the images are not here."""

    def __init__(self, store: Store) -> None:
        self._known: dict[tuple[Any, ...], dict[str, str] | None] = {}
        self._names = store.names()

    def of(self, plan: Plan) -> dict[str, str] | None:
        if not any(name.startswith(f"{plain_name(plan.data)}-") for name in self._names):
            return None  # there is nothing to compare with
        where = (plan.data, plan.data_dir, plan.image_size, plan.ood_data, plan.ood_dir)
        own = not {"data", "ood_data"}.isdisjoint(plan.contents)  # code of the user's own may make images of the seed
        made = own or not {"gaussian", "uniform"}.isdisjoint((plan.data, plan.ood_data))
        key = (*where, plan.seed if made else None)
        if key not in self._known:
            from osp.engine.data import content_keys

            try:
                self._known[key] = content_keys(plan)
            except UserError:
                self._known[key] = None
        return self._known[key]


# How long they take

USUAL_PASSES = 8.0
"""Images through the network per labeled image of a step: five unlabeled ones, some in two views."""
START = 4.0
"""Seconds to start a process and open the data."""
SHORTEST = 4
"""A recorded run must have at least this part of the steps."""
SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28)}


class Expected:
    """Seconds of a run, by what the store knows of such runs and by the cost of one image."""

    def __init__(self, store: Store) -> None:
        found = ((run.plan, run.number("steps"), run.number("seconds")) for run in store.runs())
        self._known = [(plan, steps, seconds) for plan, steps, seconds in found if steps and seconds]

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
        else:
            image = seconds_per_image(plan.network, SHAPES.get(plan.data, (3, 32, 32)))
        return START + image * images(plan) * plan.steps

    def total(self, plans: Iterable[Plan], workers: int) -> float:
        return sum(map(self.seconds, plans)) / max(1, workers)

    def told(self, plans: Sequence[Plan], workers: int) -> str:
        """`11.1 h`; a dash for no runs."""
        return duration(self.total(plans, workers)) if plans else "-"


def images(plan: Plan) -> float:
    """Images through the network in a step, roughly."""
    return float(plan.options.get("batch", 64)) * (1.0 if plan.method == "supervised" else USUAL_PASSES)


@cache
def seconds_per_image(network: str, shape: tuple[int, int, int]) -> float:
    """One image forward and backward through the network on one core, in processor time: other load does not count."""
    import torch

    from osp.nets import build_network

    net = build_network(network, shape, 10)
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
