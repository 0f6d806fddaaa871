"""Finding scores by name: a file of this folder, or an installed package's entry point."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import osp.scores
from osp.errors import UserError, suggest
from osp.scores.base import Score

NOT_SCORES = {"base", "registry"}
GROUP = "osp.scores"


def _files() -> dict[str, str]:
    """Score names and their modules in this package: a name is the file's, with dashes."""
    found = (module.name for module in pkgutil.iter_modules(osp.scores.__path__))
    return {name.replace("_", "-"): name for name in found if name not in NOT_SCORES and not name.startswith("_")}


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def known() -> set[str]:
    """Names of all scores, those that belong to methods included."""
    return {*_files(), *_entry_points()}


def available() -> list[str]:
    """Names of the scores that any network has, those of installed packages included."""
    return sorted(name for name in known() if not get(name).own)


def get(name: str) -> type[Score]:
    """The class of the score of this name; those that belong to methods are found, too."""
    if name in (files := _files()):
        return _only_score(importlib.import_module(f"osp.scores.{files[name]}"), name)
    if point := _entry_points().get(name):
        try:
            loaded = point.load()
        except Exception as error:
            raise UserError(
                f"The OOD score {name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return _only_score(loaded, name) if isinstance(loaded, ModuleType) else _checked(loaded, name)
    raise UserError(f"Unknown OOD score {name!r}.{suggest(name, available())}")


def build(name: str, feature_dim: int, num_classes: int, **config: Any) -> Score:
    """The score of this name for features and classes of these numbers; `config` is what `Score.config` gave."""
    kind = get(name)
    try:
        return kind(feature_dim, num_classes, **config)
    except TypeError as error:
        raise UserError(f"The OOD score {name!r} cannot be made from {config}: {error}") from error


def check(name: str) -> str:
    """The name, if it says which score is reported: `own` (the method's) or one that any network has.

    >>> check("energy")
    'energy'
    >>> check("enrgy")
    Traceback (most recent call last):
    osp.errors.UserError: Unknown OOD score 'enrgy'. Did you mean 'energy'?
    """
    if name != "own" and name not in (names := available()):
        raise UserError(f"Unknown OOD score {name!r}.{suggest(name, ['own', *names])}")
    return name


def _only_score(module: ModuleType, name: str) -> type[Score]:
    """The one class derived from Score that the module itself defines."""
    own = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Score) and thing.__module__ == module.__name__
    ]
    if len(own) != 1:
        listed = ", ".join(sorted(thing.__name__ for thing in own)) or "none"
        raise UserError(f"{name}: a score's file defines one class derived from osp.scores.Score; found {listed}.")
    return _checked(own[0], name)


def _checked(score: Any, name: str) -> type[Score]:
    if not (isinstance(score, type) and issubclass(score, Score)):
        raise UserError(f"The OOD score {name!r} is not a class derived from osp.scores.Score.")
    if not score.name:
        score.name = name
    return score
