"""Finding methods by name: a file of this folder, an installed package's entry point, or a path to a Python file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import osp.methods
from osp.errors import UserError, suggest
from osp.methods.base import Method
from osp.scores import Score

NOT_METHODS = {"base", "registry"}


@cache
def _files() -> dict[str, str]:
    """Method names and their modules in this package: a name is the file's, with dashes."""
    found = (module.name for module in pkgutil.iter_modules(osp.methods.__path__))
    return {name.replace("_", "-"): name for name in found if name not in NOT_METHODS and not name.startswith("_")}


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="osp.methods")}


def available() -> list[str]:
    """Names of all methods, those of installed packages included."""
    return sorted({*_files(), *_entry_points()})


def is_file(name: str) -> bool:
    """Whether a method's name is the path of a Python file."""
    return name.endswith(".py")


def get(name: str) -> type[Method]:
    """The class of a method, by its name or by the path of a Python file that defines one."""
    if is_file(name):
        return _only_method(_import_file(Path(name)), name)
    if name in _files():
        return _only_method(importlib.import_module(f"osp.methods.{_files()[name]}"), name)
    if name in _entry_points():
        loaded = _entry_points()[name].load()
        return _only_method(loaded, name) if isinstance(loaded, ModuleType) else _checked(loaded, name)
    raise UserError(f"Unknown method {name!r}.{suggest(name, available())} A file of your own: --method ./mine.py")


def own_scores(path: str) -> dict[str, type[Score]]:
    """OOD scores that a method file defines, by name."""
    module = _import_file(Path(path))
    found = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Score) and thing.__module__ == module.__name__
    ]
    return {each.name or each.__name__: each for each in found}


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"The method file {path} does not exist.")
    module_name = "osp_method_" + hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # pydantic resolves the annotations of the file's Options through this
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"The method file {path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _only_method(module: ModuleType, name: str) -> type[Method]:
    """The one class derived from Method that the module itself defines."""
    own = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Method) and thing.__module__ == module.__name__
    ]
    if len(own) != 1:
        listed = ", ".join(sorted(thing.__name__ for thing in own)) or "none"
        raise UserError(
            f"{name}: a method file defines exactly one class derived from osp.methods.Method; found {listed}."
        )
    return _checked(own[0], name)


def _checked(method: type[Method], name: str) -> type[Method]:
    if not method.name:
        method.name = Path(name).stem.replace("_", "-")
    return method
