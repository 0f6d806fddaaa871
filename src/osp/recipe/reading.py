"""Reading what people and files say: YAML with limits, `key=value`, and pydantic's errors as sentences."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from osp.errors import UserError, short, suggest
from osp.files import open_plain

LARGEST = 250_000
"""Bytes of a YAML file that is read, which takes two seconds; ours have a few thousand."""
DEEPEST = 20


class _Loader(yaml.SafeLoader):
    """Plain values only. No aliases, with which 400 bytes can stand for gigabytes, and no deep nesting."""

    depth = 0

    def _here(self) -> Any:
        return self.peek_event().start_mark  # type: ignore[no-untyped-call]

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=self._here())
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self._here())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, name in enumerate(names):
            if name in names[:place]:
                problem = f"{name[1][:60]!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.value[place][0].start_mark)
        return super().construct_mapping(node, deep)

    def whole_number(self, node: Any) -> int:
        """Without two readings of YAML 1.1 that hardly anybody means: 010 is eight, 1:30 is ninety."""
        if re.match("[-+]?0[0-9_]", node.value) or ":" in node.value:
            problem = f"{node.value[:60]} is no plain number; leave the zeros out, or put quotes around it"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return int(self.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)


def parse_yaml(text: str) -> Any:
    """The values of a YAML text, or a ValueError with the reason and, where known, the line."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "it holds characters that are not text"
        raise ValueError(f"not valid YAML{where}: {reason}") from None
    except (ValueError, ArithmeticError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {type(error).__name__}: {str(error)[:200]}") from None


def read_fields(path: str | Path, what: str = "recipe", kept: bool = False) -> dict[str, Any]:
    """The fields of a YAML file, not yet validated. One that a run has `kept` is a file and no link or pipe; what the
    user names may be either, as in --recipe <(...)."""
    try:
        with open_plain(Path(path)) if kept else open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise UserError(f"Cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > LARGEST:
        raise UserError(f"The {what} {path} is longer than {LARGEST:,} bytes; it cannot be one.")
    try:
        values = parse_yaml(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"The {what} {path} is not a text file.") from None
    except ValueError as error:
        raise UserError(f"The {what} {path} is {error}.") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        if values is None:
            raise UserError(f"The {what} {path} is empty: write `field: value` lines, such as `method: fixmatch`.")
        raise UserError(f"The {what} {path} must consist of `field: value` lines, such as `method: fixmatch`.")
    return values


def explain(
    error: ValidationError, model: type[BaseModel], what: str, hints: Mapping[str, str] = MappingProxyType({})
) -> str:
    """A pydantic error as sentences: the field, the value, what is allowed; `hints` for fields that are none."""
    sentences = []
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else what
        if problem["type"] == "extra_forbidden":
            hint = hints.get(field) or suggest(field, model.model_fields)
            sentences.append(f"Unknown field {field!r} in the {what}.{hint}")
            continue
        if problem["type"] == "missing":
            sentences.append(f"{'.'.join(map(str, problem['loc']))} is missing in the {what}.")
            continue
        described = model.model_fields.get(field)
        meaning = f" ({described.description})" if described and described.description else ""
        reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        value = short(problem["input"])
        sentences.append(f"{field}: {value} is invalid{meaning}: {reason}{'' if reason.endswith('?') else '.'}")
    return "\n".join(dict.fromkeys(sentences))


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` of --set; the value is read as YAML, so 0.5, true, null and [1, 2] mean what they look like.

    >>> parse_assignment("alpha=0.5"), parse_assignment("id_classes=[cat, dog]")
    (('alpha', 0.5), ('id_classes', ['cat', 'dog']))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text!r}: write key=value, for example --set lr=0.01")
    try:
        parsed = parse_yaml(value)
    except ValueError:
        raise UserError(f"--set {text!r}: the value cannot be read.") from None
    if isinstance(parsed, str):  # YAML 1.1 reads 1e-3 as text
        with contextlib.suppress(ValueError):
            parsed = float(parsed)
    return key.strip(), parsed


def apply_assignments(
    fields: Mapping[str, Any], assignments: list[str], recipe_fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Recipe fields with --set applied: a field of the recipe by its name, anything else an option of the method."""
    if recipe_fields is None:
        from osp.recipe.recipe import Recipe

        recipe_fields = Recipe.model_fields
    options = fields.get("options") or {}
    if not isinstance(options, dict):
        raise UserError(f"options: {short(options)} is invalid; write `name: value` lines.")
    result = {**fields, "options": dict(options)}
    for text in assignments:
        key, value = parse_assignment(text)
        if key in recipe_fields and key != "options":
            result[key] = value
        else:
            result["options"][key.removeprefix("options.")] = value
    return result
