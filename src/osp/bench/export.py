"""`results/` in the repository: finished runs as lines (`osp.runs.lines`), without weights and predictions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from osp.bench.store import Store
from osp.files import write_text
from osp.runs.lines import FORMAT, add_lines, map_name
from osp.runs.run import Run

PLACES = ("data_dir", "ood_dir")
"""Fields that speak of a machine and go no further."""


def export(runs: Iterable[Run], to: Store) -> int:
    """Add the runs that are not there yet, or were tested on more sets since; their number.

    The t-SNE map of a run goes along where one was drawn, also to a run that was exported before.
    """
    there = {run.name: run for run in to.runs()}
    new: list[dict[str, Any]] = []
    maps: dict[str, dict[str, Any]] = {}
    for run in runs:
        have = there.get(run.name)
        if have is None or _tests(run) - _tests(have):
            new.append(line_of(run))
        drawn = run.folder.read_map()
        if drawn is not None and (have is None or not have.folder.map.exists()):
            maps[run.name] = drawn
    if new:
        add_lines(to.root, new)
    for name, drawn in maps.items():
        place = there[name].folder.map if name in there else to.root / map_name(name)
        write_text(place, json.dumps(drawn) + "\n")
    return len(new)


def line_of(run: Run) -> dict[str, Any]:
    """All that a run says in words and numbers, without the folders of its machine."""
    plan = run.plan.changed(data_dir=None, ood_dir=None).model_dump(mode="json")
    recipe = plan.pop("recipe")
    return {
        "format": FORMAT,
        "name": run.name,
        "identity": run.plan.identity(),
        "versions": plan.pop("versions"),
        "machine": run.machine,
        "data": run.keys,
        "recipe": {key: value for key, value in recipe.items() if key not in PLACES},
        "plan": plan,
        "result": run.result,
        "metrics": [line for line in run.metrics if line.get("kind") == "eval"],
    }


def _tests(run: Run) -> set[str]:
    return set(run.result.get("other_ood") or {})
