"""Finding methods by name: a file of this folder, an installed package's entry point, or a path to a Python file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from osp.errors import LONGEST_PATH, UserError, short, suggest
from osp.methods.base import Method
from osp.plugins import Plugins, only_class
from osp.scores import Score

_read = only_class(Method)
_methods = Plugins("osp.methods", "osp.methods", "method", _read, helpers=("base", "registry"))


def available() -> list[str]:
    """Names of all methods, those of installed packages included."""
    return _methods.names()


def is_file(name: str) -> bool:
    """Whether a method's name is the path of a Python file."""
    return name.endswith(".py") and len(name) <= LONGEST_PATH


def get(name: str) -> type[Method]:
    """The class of a method, by its name or by the path of a Python file that defines one."""
    method = _from_file(Path(name)) if is_file(name) else _methods.get(name)
    if method is None:
        hint = suggest(name, available())
        raise UserError(f"Unknown method {short(name)}.{hint} A file of your own: --method ./mine.py")
    if not method.name:
        method.name = Path(name).stem.replace("_", "-")
    return method


def options_before(name: str) -> dict[str, Any]:
    """What a method did before some of its options were there (`Options`); nothing is known of a file."""
    try:
        method = None if is_file(name) else _methods.get(name)
    except UserError:
        method = None
    marks = {} if method is None else {key: each.json_schema_extra for key, each in method.Options.model_fields.items()}
    return {key: mark["before"] for key, mark in marks.items() if isinstance(mark, dict) and "before" in mark}


def own_scores(path: str) -> dict[str, type[Score]]:
    """OOD scores that a method file defines, by name."""
    module = _import_file(Path(path))
    found = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Score) and thing.__module__ == module.__name__
    ]
    return {each.name or each.__name__: each for each in found}


def _from_file(path: Path) -> type[Method]:
    try:
        return _read(_import_file(path))
    except TypeError as error:
        raise UserError(f"The method file {path} is none: {error}.") from None


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
