"""Things that are found by name: each a file of a package's folder, or an entry point of an installed package.

Nothing is imported before it is asked for, so that a misspelt name is told at once.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from osp.errors import UserError

T = TypeVar("T")


class Plugins(Generic[T]):
    """The files of `package` by their names, with dashes, and the entry points of `group`; files come first.

    `kind` is the word for one of them in messages, `read` finds the thing in a module, or takes the thing itself where
    an entry point names it; it raises TypeError with what it looked for. Files in `helpers` and those whose names
    begin with an underscore hold what the others share.
    """

    def __init__(
        self, package: str, group: str, kind: str, read: Callable[[Any], T], helpers: Iterable[str] = ()
    ) -> None:
        self.package, self.group, self.kind, self.read = package, group, kind, read
        self.helpers = frozenset(helpers)

    def files(self) -> dict[str, str]:
        """Names and the modules of the package that they stand for."""
        folders = tuple(importlib.import_module(self.package).__path__)
        stems = _modules(folders, tuple(map(_changed, folders)))
        return {stem.replace("_", "-"): stem for stem in stems if stem not in self.helpers and stem[0] != "_"}

    def installed(self) -> dict[str, EntryPoint]:
        """What installed packages announce."""
        return _points(entry_points, self.group)

    def names(self) -> list[str]:
        """All names, in alphabetical order."""
        return sorted({*self.files(), *self.installed()})

    def get(self, name: str) -> T | None:
        """The thing of this name; None where there is none."""
        if stem := self.files().get(name):
            return self.read(importlib.import_module(f"{self.package}.{stem}"))
        point = self.installed().get(name)
        if point is None:
            return None
        origin = f" of the package {point.dist.name}" if point.dist is not None else ""
        what = f"The {self.kind} {name!r}{origin} cannot be loaded"
        try:
            found = point.load()
        except Exception as error:  # code of others: whatever it raises is theirs to mend
            raise UserError(f"{what}: {type(error).__name__}: {error}") from error
        try:
            return self.read(found)
        except Exception as error:
            raise UserError(f"{what}: {error}") from error


@cache
def _modules(folders: tuple[str, ...], changed: tuple[int, ...]) -> tuple[str, ...]:
    """Of folders that were last changed then: a table asks for its methods a thousand times."""
    return tuple(module.name for module in pkgutil.iter_modules(folders))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:  # in an archive, which does not change
        return 0


@cache
def _points(find: Callable[..., Iterable[EntryPoint]], group: str) -> dict[str, EntryPoint]:
    """Reading them takes a tenth of a second: once per process."""
    return {point.name: point for point in find(group=group)}


def only_class(base: type[T]) -> Callable[[Any], type[T]]:
    """A reader for `Plugins`: the one class derived from `base` that a module itself defines, or such a class."""

    def read(thing: Any) -> type[T]:
        found = [thing]
        if isinstance(thing, ModuleType):
            found = [each for each in vars(thing).values() if getattr(each, "__module__", None) == thing.__name__]
        own = [each for each in found if isinstance(each, type) and issubclass(each, base) and each is not base]
        if len(own) != 1:
            listed = ", ".join(sorted(each.__name__ for each in own)) or "none"
            raise TypeError(f"exactly one class derived from {base.__name__} is wanted; found {listed}")
        return own[0]

    return read
