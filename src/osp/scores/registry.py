"""Finding scores by name: a file of this folder, an installed package's entry point, or a path to a Python file."""

from __future__ import annotations

from typing import Any

from osp.errors import UserError, suggest
from osp.plugins import Plugins, is_file, only_class, plain_name
from osp.scores.base import Score

_scores = Plugins("osp.scores", "osp.scores", "OOD score", only_class(Score), helpers=("base", "registry"))  # type: ignore[type-abstract]


def known() -> set[str]:
    """Names of all scores, those that belong to methods included."""
    return set(_scores.names())


def available() -> list[str]:
    """Names of the scores that any network has, those of installed packages included."""
    return [name for name in _scores.names() if not get(name).own]


def get(name: str) -> type[Score]:
    """The class of the score of this name; those that belong to methods are found, too."""
    score = _scores.get(name)
    if score is None:
        raise UserError(f"Unknown OOD score {name!r}.{suggest(name, available())}")
    if not score.name:
        score.name = plain_name(name)
    return score


def content(name: str) -> str | None:
    """Hash of the code of a score from outside the package (`Plugins.content`)."""
    return _scores.content(name)


def build(name: str, feature_dim: int, num_classes: int, **config: Any) -> Score:
    """The score of this name for features and classes of these numbers; `config` is what `Score.config` gave."""
    kind = get(name)
    try:
        return kind(feature_dim, num_classes, **config)
    except TypeError as error:
        raise UserError(f"The OOD score {name!r} cannot be made from {config}: {error}") from error


def check(name: str) -> str:
    """The name, if it says which score is reported: `own` (the method's), one that any network has, or a file.

    >>> check("energy")
    'energy'
    >>> check("enrgy")
    Traceback (most recent call last):
    osp.errors.UserError: Unknown OOD score 'enrgy'. Did you mean 'energy'?
    """
    if is_file(name):
        get(name)
    elif name != "own" and name not in (names := available()):
        raise UserError(f"Unknown OOD score {name!r}.{suggest(name, ['own', *names])}")
    return name
