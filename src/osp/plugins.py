"""Things that are found by name: a file of a package's folder, an installed package's entry point, or a user's file.

Nothing is imported before it is asked for, so that a misspelled name is told at once. A file of the user's own, such as
./mine.py, is code: it is run only after `trust` was told that the user has named it, on the command line or in Python,
and never because a stored plan, a recipe file or a grid file says so.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from osp.errors import LONGEST_PATH, UserError

T = TypeVar("T")

_trusted: set[str] = set()


def is_file(name: object) -> bool:
    """Whether a name is the path of a Python file."""
    return isinstance(name, str) and name.endswith(".py") and len(name) <= LONGEST_PATH


def plain_name(name: str) -> str:
    """The name for titles and folders: `mine` for ./mine.py, any other as it is."""
    return Path(name).stem if is_file(name) else name


def same_path(name: str) -> str:
    """A file by its path from the root, which is the same however it was named; other names as they are."""
    return str(Path(name).resolve()) if is_file(name) else name


def trust(*names: object) -> None:
    """Note files that the user has named: only these are ever run."""
    _trusted.update(same_path(str(name)) for name in names if is_file(name))


def trusted(name: str) -> bool:
    """Whether the user has named this file."""
    return same_path(name) in _trusted


def file_content(name: str, kind: str) -> str:
    """Hash of a user's file."""
    return _digest(_read(name, kind))


def load_file(name: str, kind: str) -> ModuleType:
    """The module of a user's file, which `trust` must know; run once for each content."""
    if not trusted(name):
        raise UserError(
            f"The {kind} file {name} is code that you have not named yourself: it is not run. If you trust it, name it "
            "on the command line (for a report: --code FILE) or in Python."
        )
    content = _read(name, kind)
    place = f"{same_path(name)}\n{_digest(content)}"
    module_name = "osp_file_" + hashlib.blake2b(place.encode(), digest_size=6).hexdigest()
    if module_name in sys.modules:
        return sys.modules[module_name]
    module = ModuleType(module_name)
    module.__file__ = name
    sys.modules[module_name] = module  # pydantic resolves the annotations of a method's Options through this
    try:
        exec(compile(content, name, "exec"), vars(module))  # what was hashed, and nothing from __pycache__
    except Exception as error:
        del sys.modules[module_name]
        raise UserError(f"The {kind} file {name} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _read(name: str, kind: str) -> bytes:
    if not Path(name).is_file():
        raise UserError(f"The {kind} file {name} does not exist.")
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the {kind} file {name}: {error.strerror or error}.") from None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


class Plugins(Generic[T]):
    """The files of `package` by their names, with dashes, the entry points of `group`, and files of the user's own.

    Files of the package come first.

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
        """The thing of this name, or of this file of the user's; None where there is none."""
        if is_file(name):
            try:
                return self.read(load_file(name, self.kind))
            except TypeError as error:
                raise UserError(f"{name} is no {self.kind} file: {str(error).rstrip('.')}.") from None
        if stem := self.files().get(name):
            return self.read(importlib.import_module(f"{self.package}.{stem}"))
        point = self.installed().get(name)
        if point is None:
            return None
        origin = f" of the package {point.dist.name}" if point.dist is not None else ""
        what = f"The {self.kind} {name!r}{origin} cannot be loaded"
        try:
            found = point.load()
        except Exception as error:  # code of others: whatever it raises is theirs to fix
            raise UserError(f"{what}: {type(error).__name__}: {error}") from error
        try:
            return self.read(found)
        except Exception as error:
            raise UserError(f"{what}: {error}") from error

    def content(self, name: str) -> str | None:
        """Hash of the code of this name where it may change under it: of a user's file, or of an installed package's
        version and the modules that announce and define the thing; None for what is our own, or unknown."""
        if is_file(name):
            return file_content(name, self.kind)
        point = None if name in self.files() else self.installed().get(name)
        if point is None:
            return None
        found = self.get(name)
        parts = [found, *vars(found).values()] if not isinstance(found, type) else [found]
        home = point.module.partition(".")[0]
        named = {point.module, *(str(getattr(part, "__module__", "")) for part in parts)}
        modules = [
            sys.modules[each] for each in sorted(named) if each.partition(".")[0] == home and each in sys.modules
        ]
        files = [Path(each.__file__) for each in modules if each.__file__ is not None]
        version = "" if point.dist is None else point.dist.version
        return _digest(b"\0".join([version.encode(), *(file.read_bytes() for file in files if file.is_file())]))


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
