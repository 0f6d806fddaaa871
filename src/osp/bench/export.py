"""`results/` in the repository: a store without weights, made of the small text files of finished runs."""

from __future__ import annotations

import json
from collections.abc import Iterable

from osp.bench.store import Store, StoredRun
from osp.errors import UserError
from osp.files import make_folder, write_text
from osp.recipe import Recipe
from osp.runs.folder import RunFolder

PLACES = ("data_dir", "ood_dir")
"""Fields that speak of a machine and go no further."""


def export(runs: Iterable[StoredRun], to: Store) -> int:
    """Copy plan, recipe, result, content keys, run.json and the evaluations of each run; the number of new ones.

    The t-SNE map of a run goes along where one was drawn, also to a run that was copied before.
    """
    made = 0
    for run in runs:
        folder = RunFolder(to.root / run.name)
        if not folder.result.exists() or set(run.result.get("other_ood") or {}) - set(_other_ood(folder)):
            _copy(run, folder, to)
            made += 1
        drawn = run.folder.read_map()
        if drawn is not None and not folder.map.exists():
            write_text(folder.map, json.dumps(drawn) + "\n")
    return made


def _copy(run: StoredRun, folder: RunFolder, to: Store) -> None:
    to.create()
    make_folder(folder.path)
    recipe = {key: value for key, value in run.plan.recipe.items() if key not in PLACES}
    plan = run.plan.changed(data_dir=None, ood_dir=None, recipe=recipe)
    write_text(folder.plan, plan.dump())
    write_text(folder.recipe, Recipe(**recipe).dump())
    write_text(folder.data, json.dumps(run.data, indent=2) + "\n")
    lines = [json.dumps(line) for line in run.folder.read_metrics() if line.get("kind") == "eval"]
    write_text(folder.metrics, "".join(f"{line}\n" for line in lines))
    to.note(folder, plan, "finished", run.machine)
    folder.write_result(run.result)  # last: it says that the run is whole


def _other_ood(folder: RunFolder) -> list[str]:
    try:
        return list((folder.read_result() or {}).get("other_ood") or {})
    except UserError:
        return []
