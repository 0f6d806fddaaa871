"""Finding methods by name: a file of this folder, an installed package's entry point, or a path to a Python file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from osp.errors import UserError, short, suggest
from osp.methods.base import Method, Options
from osp.plugins import Plugins, is_file, load_file, only_class, plain_name
from osp.scores import Score

_methods = Plugins("osp.methods", "osp.methods", "method", only_class(Method), helpers=("base", "declared", "registry"))


def available() -> list[str]:
    """Names of all methods, those of installed packages included."""
    return _methods.names()


def content(name: str) -> str | None:
    """Hash of the code of a method from outside the package (`Plugins.content`)."""
    return _methods.content(name)


def get(name: str) -> type[Method]:
    """The class of a method, by its name or by the path of a Python file that defines one and that the user named."""
    method = _methods.get(name)
    if method is None:
        hint = suggest(name, available())
        raise UserError(f"Unknown method {short(name)}.{hint} A file of your own: --method ./mine.py")
    if not method.name:
        method.name = plain_name(name).replace("_", "-")
    return method


def known_options(name: str) -> set[str]:
    """Names of a method's options; of a file, which is not run for this, those that every method has."""
    return set((_options(name) or Options).model_fields)


def options_before(name: str) -> dict[str, Any]:
    """What a method did before some of its options were there (`Options`); nothing is known of a file."""
    known = _options(name)
    fields = {} if known is None else {**_gone(known), **known.model_fields}
    marks = {key: each.json_schema_extra for key, each in fields.items()}
    return {key: mark["before"] for key, mark in marks.items() if isinstance(mark, dict) and "before" in mark}


def options_removed(name: str) -> dict[str, Any]:
    """Options that a method had once and their last defaults (`Options.removed`); nothing is known of a file."""
    known = _options(name)
    return {} if known is None else {key: each.default for key, each in _gone(known).items()}


def without_removed(method: type[Method], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a plan or recipe of an earlier version has them, for the method of today.

    A removed option is passed over where it has its last default, and is a UserError where it has another value.
    """
    removed = {key: each.default for key, each in _gone(method.Options).items()}
    for key in options.keys() & removed.keys():
        if not same(options[key], removed[key]):
            raise UserError(
                f"Method {method.name!r} no longer has the option {key!r}: it does what it did with {removed[key]!r}, "
                f"and {short(options[key])} was asked for. Use the version of osp that had it, or leave it out."
            )
    return {key: value for key, value in options.items() if key not in removed}


def same(one: Any, other: Any) -> bool:
    """Equal as JSON, 1 and 1.0 being the same number."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _options(name: str) -> type[Options] | None:
    try:
        method = None if is_file(name) else _methods.get(name)
    except UserError:
        method = None
    return None if method is None else method.Options


def _gone(options: type[Options]) -> dict[str, FieldInfo]:
    """The removed options of a class and of those it derives from; what is there again is not gone."""
    listed = [vars(kind).get("removed", {}) for kind in reversed(options.__mro__)]
    found = {key: value for each in listed for key, value in each.items() if key not in options.model_fields}
    return {key: each if isinstance(each, FieldInfo) else FieldInfo(default=each) for key, each in found.items()}


def own_scores(path: str) -> dict[str, type[Score]]:
    """OOD scores that a method file defines, by name."""
    module = load_file(path, "method")
    found = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Score) and thing.__module__ == module.__name__
    ]
    return {each.name or each.__name__: each for each in found}
