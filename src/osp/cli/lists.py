"""What there is to choose from: `osp datasets`, `osp methods` and `osp settings`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from osp.cli.text import columns, console, plain, say
from osp.errors import UserError, short, suggest, user_path
from osp.plugins import trust
from osp.recipe.fields import GROUPS

if TYPE_CHECKING:
    from osp.data import SourceInfo
    from osp.methods.base import Method

OWN = ("folder", "pile", "shards")
"""Sets that are the user's images: there is nothing to find before a folder is named."""

INDENT = 14


def datasets(
    data_dir: Annotated[
        str | None, typer.Option(help="Folder to look in; else OSP_DATA, else your cache folder.")
    ] = None,
) -> None:
    """Show each data set: whether it is there, its size, where it was looked for, and how to get it.

    Example: `osp datasets --data-dir ~/data`
    """
    from osp.data import data_dir as folder_of
    from osp.data import describe
    from osp.data.folders import check_root

    if data_dir is not None:
        user_path(data_dir)
    check_environment()
    folder = folder_of(data_dir)
    check_root(folder)
    shown = console()
    shown.print(plain(f"Looked in {folder}\n", lines=True), soft_wrap=True)
    for info in describe(data_dir):
        state, style, notes = _state(info)
        line = plain(f"{info.name:<{INDENT - 2}}  ", "bold")
        line.append_text(plain(f"{state:<9}", style)).append_text(plain(_counts(info)))
        shown.print(line)
        for note in notes:  # not wrapped: paths and addresses are copied, and a terminal breaks them by itself
            shown.print(plain(" " * INDENT + note), soft_wrap=True)


def check_environment() -> None:
    """Refuse OSP_DATA or OSP_CACHE that name the home folder of an unknown user."""
    import os

    for name in ("OSP_DATA", "OSP_CACHE"):
        try:
            user_path(os.environ.get(name, ""))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None


def _state(info: SourceInfo) -> tuple[str, str, list[str]]:
    """One word for a set, its color, and the lines below it."""
    notes = [f"variant: {info.variant}"] if info.variant else []
    notes += [f"problem: {info.problem}"] if info.problem else []
    if info.name in OWN:
        return "yours", "cyan", [*notes, info.how]
    if info.found is None:
        return "known", "cyan", [*notes, info.where]
    if info.found:
        return "found", "green", [info.where, *notes]
    return "missing", "yellow", [*notes, f"looked for in {info.where}", *([info.how] if info.how else [])]


def _counts(info: SourceInfo) -> str:
    counts = [] if info.train is None else [f"{info.train:,}"]
    counts += [] if not info.test else [f"{info.test:,} test"]
    return f"{' + '.join(counts)} images" if counts else ""


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the options of this method.")] = None,
    preset: Annotated[
        str,
        typer.Option(help="Values of the common harness (default), as published (paper), or of version 0.1 (v0.1)."),
    ] = "default",
    data: Annotated[
        str | None,
        typer.Option(help="The values that a run on this data set takes; with --preset paper those published."),
    ] = None,
) -> None:
    """List the methods, or show one with its options and where each value comes from.

    Examples:

    - `osp methods fixmatch`

    - `osp methods fixmatch --preset paper --data cifar100`
    """
    from osp.data import available as data_sets
    from osp.data import known as known_set
    from osp.methods import available, get
    from osp.methods.base import earlier_options, published_for
    from osp.recipe.recipe import Preset

    if preset not in (known := get_args(Preset)):
        raise UserError(f"--preset {preset!r}: no such preset.{suggest(preset, known)}")
    if data is not None:
        trust(data)  # a file that is named here may be run
    if data is not None and not known_set(data):
        raise UserError(f"Unknown data set {short(data)}.{suggest(data, data_sets())} `osp datasets` shows them.")
    shown = console()
    if name is None:
        rows = [(each, get(each).summary, get(each).reference) for each in available()]
        shown.print(columns(*rows, headings=("method", "what it does", "from")))
        say("`osp methods NAME` shows a method's options; `--method ./mine.py` runs one of your own.")
        return
    method = get(name)
    title = plain(method.name, "bold").append_text(plain(f": {method.summary}\n{method.reference}\n", lines=True))
    shown.print(title)
    if preset == "paper":
        if data is not None and not published_for(method, data):
            shown.print(plain(f"The publication has no {data}: its general values stand in.\n", "yellow", lines=True))
        published = [(key, *_published(method, key, data)) for key in method.Options.model_fields]
        shown.print(columns(*published, headings=("option", "value", "meaning", "source"), padding=(0, 1)))
        return
    from osp.recipe.deciding import scale_options

    chosen: Preset = "v0.1" if preset == "v0.1" else "default"
    earlier = earlier_options(method) if chosen == "v0.1" else {}
    by_scale = earlier | ({} if data is None else scale_options(method, chosen, "cpu", data))
    shown.print(columns(*options_of(method, by_scale), headings=("option", "value", "meaning"), padding=(0, 1)))
    if data is None:
        say("\nShort runs on color images take others: `--data cifar100` shows them.", "")
    say("\nChange one with `osp train --set OPTION=VALUE`. `--preset paper` shows the published values and sources.")


def options_of(method: type[Method], by_scale: Mapping[str, Any] = MappingProxyType({})) -> list[tuple[str, str, str]]:
    """Name, default, or what a scale sets instead, and meaning of each option."""
    return [
        (name, value(by_scale.get(name, field.get_default(call_default_factory=True))), field.description or "")
        for name, field in method.Options.model_fields.items()
    ]


def settings(
    method: Annotated[str | None, typer.Argument(help="Show the options of this method too.")] = None,
) -> None:
    """Show every setting of a run with its default and meaning, and with METHOD the method's options as well.

    Each can stand in a recipe file (`steps: 500`) or behind `--set` (`--set steps=500`).

    Examples:

    - `osp settings`

    - `osp settings fixmatch`
    """
    tables = {
        title: [(name, text.unset, text.meaning) for name, text in fields.items()] for title, fields in GROUPS.items()
    }
    if method is not None:
        from osp.methods import get

        tables[f"Options of {method} (`osp methods {method} --preset paper`: as published)"] = options_of(get(method))
    width = max(len(row[0]) for rows in tables.values() for row in rows)
    shown = console()
    for title, rows in tables.items():
        shown.print(plain(title, "bold"))
        shown.print(columns(*((name.ljust(width), *rest) for name, *rest in rows), padding=(0, 1)))
        say()
    if method is None:
        say("`osp settings METHOD` adds the options of a method: learning rate, batch size and so on.")
    say("Use any of them as `osp train --set steps=500 --set lr=0.01`, or as `steps: 500` in a recipe file (--recipe).")


def _published(method: type[Method], key: str, data: str | None) -> tuple[str, str, str]:
    """Value, meaning and source of an option as published: in general with its exceptions, or for one data set."""
    from osp.methods.base import UNPUBLISHED

    field = method.Options.model_fields[key]
    meaning = field.description or ""
    published = method.paper.get(key)
    if published is None:
        if key in UNPUBLISHED:
            source = "the method's own, as published" if key == "score" else "off: not in the publication"
            return value(UNPUBLISHED[key]), meaning, source
        return value(field.get_default(call_default_factory=True)), meaning, "not published; our default"
    if data is None:
        exceptions = "".join(f"\n{value(other)} on {name}" for name, other in published.by_data.items())
        return value(published.value) + exceptions, meaning, published.source
    exception = f"; {value(published.value)} elsewhere" if data in published.by_data else ""
    return value(published.value_for(data)), meaning, published.source + exception


def value(thing: object) -> str:
    """A value as it is written behind `--set`."""
    if thing is None:
        return "null"
    if isinstance(thing, bool):
        return str(thing).lower()
    if isinstance(thing, list | tuple):
        return f"[{','.join(map(value, thing))}]"
    return f"{thing:g}" if isinstance(thing, float) else str(thing)
