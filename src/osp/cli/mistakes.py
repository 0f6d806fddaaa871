"""A mistake on the command line as one sentence that says what to write instead."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from osp.errors import suggest

OTHER_WORDS = {
    "gpu": "device=cuda",
    "cuda": "device=cuda",
    "cpu": "device=cpu",
    "batch_size": "batch",
    "learning_rate": "lr",
    "wd": "weight_decay",
    "model": "network",
    "epochs": "steps=N",
    "iterations": "steps",
}
"""What other programs call it: a setting of ours, with its value where the word is one."""

SURE = 0.75
"""An option as near as this is what was meant; below it, a setting of that very name is likelier."""


def explain(error: Any) -> str:
    """One sentence for whatever click or typer found wrong."""
    command = error.ctx.command_path.replace("bench run", "bench") if error.ctx is not None else "osp"
    unknown = getattr(error, "option_name", None)
    if unknown is None or error.ctx is None:
        message = error.format_message().strip()
        return f"{message}{'' if message.endswith(('.', '?')) else '.'} `{command} --help` shows what there is."
    options = [name for parameter in error.ctx.command.params for name in parameter.opts if name.startswith("--")]
    hint = _nearest(unknown, options, SURE)
    if not hint and "--set" in options:
        hint = _setting(unknown, options)
    hint = hint or _nearest(unknown, options, 0.6) or suggest("", options)
    return f"No such option: {unknown}.{hint} `{command} --help` shows them."


def _nearest(unknown: str, options: Iterable[str], cutoff: float) -> str:
    """The nearest option by the letters after the dashes: with them, any two short options are alike."""
    names = {name.lstrip("-"): name for name in options}
    near = difflib.get_close_matches(unknown.lstrip("-"), names, n=1, cutoff=cutoff)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def _setting(unknown: str, options: Iterable[str]) -> str:
    """`write --set lr=0.1`, where the option is a field of the recipe or an option of the method."""
    from osp.recipe import Recipe

    name = unknown.lstrip("-").replace("-", "_")
    name, _, fixed = OTHER_WORDS.get(name, name).partition("=")
    if f"--{name.replace('_', '-')}" in options:
        return f" Write --{name.replace('_', '-')} {fixed or _value_after(unknown)}."
    write = f" Write --set {name}={fixed or _value_after(unknown)};"
    if name in Recipe.model_fields:
        return f"{write} `osp settings` explains it."
    return f"{write} `osp settings METHOD` explains it." if name in _method_options() else ""


def _value_after(option: str) -> str:
    """The value that stands behind an option on the command line."""
    words = [*sys.argv[1:], "", ""]
    for word, following in pairwise(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and following and not following.startswith("--"):
            return following
    return "VALUE"


def _method_options() -> set[str]:
    """Options of the method on the command line, else of any method."""
    from osp.methods.registry import available, known_options

    named = _value_after("--method")
    return set().union(*map(known_options, [named] if named in available() else available()))
