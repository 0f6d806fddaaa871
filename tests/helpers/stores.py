"""Stores with finished runs that nobody trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from osp import Recipe
from osp.bench.store import Store
from osp.recipe import Plan, make_plan


def plan_of(**fields: Any) -> Plan:
    return make_plan(Recipe(**{"method": "supervised", "scale": "demo", "steps": 10, **fields}))


def finished(store: Store, plan: Plan, **numbers: Any) -> Path:
    """A finished run of this plan, with these numbers as its result."""
    store.create()
    folder = store.folder_for(plan)
    folder.path.mkdir()
    folder.plan.write_text(plan.dump())
    folder.data.write_text(json.dumps({"0 digits": "k"}))
    result = {"accuracy": 90.0, "auroc": 80.0, "steps": plan.steps, "seconds": 2.0, "images_seen": 320}
    folder.write_result({**result, "versions": plan.versions, "identity": plan.identity(), **numbers})
    return folder.path
