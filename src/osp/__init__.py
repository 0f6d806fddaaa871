"""osp: image classifiers from few labels and a messy unlabeled pool.

    import osp

    run = osp.train(osp.Recipe(data="digits", method="fixmatch", scale="demo"), out="runs/first")
    print(run.result["accuracy"], run.model.class_names)

Heavy imports (torch) happen when they are first used, so that the command line answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osp.errors import UserError
from osp.version import __version__

if TYPE_CHECKING:
    from osp.api import train
    from osp.models import Predictor, load
    from osp.photos.estimator import RobustClassifier
    from osp.photos.fit import fit
    from osp.recipe import Plan, Recipe
    from osp.runs.run import Run

_LAZY = {
    "Recipe": "osp.recipe",
    "train": "osp.api",
    "Run": "osp.runs.run",
    "fit": "osp.photos.fit",
    "load": "osp.models",
    "Predictor": "osp.models.trained",
    "Plan": "osp.recipe",
    "RobustClassifier": "osp.photos.estimator",
}

_ROOMS = ("data", "methods", "nets", "parts", "scores")

__all__ = [
    "Plan",
    "Predictor",
    "Recipe",
    "RobustClassifier",
    "Run",
    "UserError",
    "__version__",
    "fit",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _ROOMS:
        return import_module(f"osp.{name}")
    raise AttributeError(f"module 'osp' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is to use, loaded or not: `dir(osp)` and completion show it."""
    return sorted({*__all__, *_ROOMS, *(name for name in globals() if name.startswith("__"))})
