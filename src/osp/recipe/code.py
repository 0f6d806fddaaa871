"""Which code a recipe or a plan names: files of the user's own and plug-ins of installed packages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from osp.errors import UserError
from osp.plugins import file_content, is_file, same_path

if TYPE_CHECKING:
    from osp.recipe.plan import Plan
    from osp.recipe.recipe import Recipe

OPTIONS = {"score": "OOD score", "weak": "view", "strong": "view"}
"""Options of every method that may be a file, with the word for it."""
NAMED = {"method": "method", "network": "network", "data": "data set", "ood_data": "data set", **OPTIONS}
"""These and the fields of a recipe that may be one."""


def names_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields of a recipe or plan have under these names."""
    options = fields.get("options")
    given = options if isinstance(options, Mapping) else {}
    return {key: (given if key in OPTIONS else fields).get(key) for key in NAMED}


def files_in(fields: Mapping[str, Any]) -> dict[str, str]:
    """The files among them.

    >>> files_in({"method": "fixmatch", "network": "./tiny.py", "options": {"score": "./mine.py"}})
    {'network': './tiny.py', 'score': './mine.py'}
    """
    return {key: name for key, name in names_in(fields).items() if is_file(name)}


def as_fields(names: Mapping[str, str], options: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The other way round: as fields of a recipe or plan, beside these options."""
    fields: dict[str, Any] = {key: name for key, name in names.items() if key not in OPTIONS}
    chosen = {key: name for key, name in names.items() if key in OPTIONS}
    return {**fields, "options": {**options, **chosen}} if chosen else fields


def asked(key: str, name: str) -> str:
    """How the command names it.

    >>> asked("ood_data", "./far.py"), asked("score", "./mine score.py")
    ('--ood-data ./far.py', "--set 'score=./mine score.py'")
    """
    if key in OPTIONS:
        return f"--set {shlex.quote(f'{key}={name}')}"
    return f"--{key.replace('_', '-')} {shlex.quote(name)}"


def option_for(key: str, name: str) -> str:
    """How the user names it, in Python too."""
    python = f"options={{'{key}': ...}}" if key in OPTIONS else f"{key}=..."
    return f"{asked(key, name)} (in Python: {python})"


def contents_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the code from outside the package that a run uses; that of a method file has a field of its own."""
    from osp.data import source, views
    from osp.methods import registry as methods
    from osp.nets import registry as networks
    from osp.scores import registry as scores

    found = {
        "method": methods.content,
        "network": networks.content,
        "data set": source.content,
        "OOD score": scores.content,
        "view": views.content,
    }
    hashes = {key: found[NAMED[key]](name) for key, name in names_in(fields).items() if isinstance(name, str)}
    return {key: each for key, each in hashes.items() if each is not None}


def without_code(
    fields: Mapping[str, Any], file: str, named: Collection[str] = (), how: Callable[[str, str], str] = option_for
) -> None:
    """Refuse the fields of a recipe or grid file where they name a file of code that the user has not named as well.

    `how` tells how the user names it.
    """
    for key, name in files_in(fields).items():
        if same_path(name) not in map(same_path, named):
            raise UserError(
                f"{file} names the {NAMED[key]} file {name}, and files do not say which code is run. "
                f"If you trust it, name it yourself: {how(key, name)}."
            )


def same_files(plan: Plan, recipe: Recipe) -> dict[str, str]:
    """Files of code that a recipe names and whose content the plan has, perhaps from another place."""
    mine, then = files_in(plan.model_dump()), {**plan.contents, "method": plan.method_content}
    asked = {key: name for key, name in files_in(recipe.asked()).items() if key in mine}
    return {key: name for key, name in asked.items() if file_content(name, NAMED[key]) == then.get(key)}


def check_code(plan: Plan, recipe: Recipe, where: object) -> None:
    """Refuse to go on with code that the user has not named again, or that is not what the run began with."""
    mine, named = plan.model_dump(), files_in(recipe.asked())
    unnamed = {key: name for key, name in files_in(mine).items() if key not in named}
    if plan.method_content is not None and "method" not in named:
        unnamed["method"] = plan.method
    for key, name in unnamed.items():
        how = option_for(key, name)
        raise UserError(f"This run was made with the {NAMED[key]} file {name}. If you trust it, name it: {how}")
    then = plan.contents if plan.method_content is None else {**plan.contents, "method": plan.method_content}
    now = contents_of(mine)
    for key in sorted(now.keys() | then.keys()):
        if now.get(key) != then.get(key):
            word = NAMED.get(key, "code")
            raise UserError(
                f"The {word} {names_in(mine).get(key)} is not the one that the run in {where} began with. Start a new "
                "run with another --out (in Python: out=)."
            )
