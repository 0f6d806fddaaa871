"""Finding a figure's file and writing what it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from osp.errors import UserError, suggest
from osp.files import make_folder
from osp.plugins import Plugins
from osp.report.figure import own_style, save_both
from osp.runs.run import Run

PREFIX = "figure-"


@dataclass(frozen=True)
class Drawing:
    """A figure's file, read."""

    title: str
    figures: Callable[[list[Run]], Mapping[str, Figure]]


def _read(module: Any) -> Drawing:
    if not callable(getattr(module, "figures", None)) or not isinstance(getattr(module, "TITLE", None), str):
        raise TypeError("a text TITLE and a function figures(runs) are wanted")
    return Drawing(module.TITLE, module.figures)


_files: Plugins[Drawing] = Plugins("osp.bench.figures", "osp.figures", "figure", _read)


def available() -> list[str]:
    """Names of all figures.

    >>> available()[:3]
    ['figure-alpha', 'figure-angle', 'figure-cam']
    """
    return [PREFIX + name for name in _files.names()]


def title(name: str) -> str:
    """What a figure shows, in one sentence."""
    return _find(name).title


def draw(name: str, runs: Sequence[Run], out: Path) -> list[Path]:
    """Draw a figure from these runs into the folder `out`: `name.png` and `name.svg`, or several of both."""
    drawing = _find(name)
    make_folder(out)
    with own_style():
        made = drawing.figures(list(runs))
        return [
            path
            for ending, figure in made.items()
            for path in save_both(figure, out, f"{name}-{ending}" if ending else name)
        ]


def _find(name: str) -> Drawing:
    found = _files.get(name.removeprefix(PREFIX))
    if found is None:
        raise UserError(f"There is no figure {name!r}.{suggest(name, available())}")
    return found
