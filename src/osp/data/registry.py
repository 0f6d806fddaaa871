"""Finding data sets by name: a file of `osp/data/sources/`, or an installed package's entry point.

Names come from the files' names, so that listing them imports none of the files.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import osp.data.sources
from osp.data.source import Source
from osp.errors import UserError, suggest

GROUP = "osp.data"
NOT_SETS = {"base"}


def _files() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(osp.data.sources.__path__))
    return [name for name in found if name not in NOT_SETS and not name.startswith("_")]


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def available() -> list[str]:
    """Names that `load` knows, those of installed packages included.

    >>> available()[:3]
    ['cifar10', 'cifar100', 'digits']
    """
    return sorted({*_files(), *_entry_points()})


def get(name: str) -> Source:
    """The source of this name."""
    if name in _files():
        found = importlib.import_module(f"osp.data.sources.{name}")
    elif name in _entry_points():
        point = _entry_points()[name]
        try:
            found = point.load()
        except Exception as error:
            raise UserError(
                f"The data set {name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
    else:
        raise UserError(f"There is no data set {name!r}.{suggest(str(name), available())}")
    declared = getattr(found, "SOURCE", found)
    if not isinstance(declared, Source):
        raise UserError(f"The data set {name!r}: its module declares no SOURCE = osp.data.Source(...).")
    return declared
