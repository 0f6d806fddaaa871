"""The paper's figures, and one that it lacks, from finished runs.

Figures of lines are entries of a table (`_lines.FIGURES`). Any other is a file, found by its name or by an entry point
of the group `osp.figures`: it defines `figures(runs)`, which gives one or more drawings by the ending of their file
names ("" for the only one). `draw("figure-ratio", runs, out)` writes each as PNG and SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from osp.bench.figures import _lines
from osp.errors import UserError, suggest
from osp.files import make_folder
from osp.plugins import Plugins
from osp.report.figure import own_style, save_both
from osp.runs.run import Run

PREFIX = "figure-"

Draw = Callable[[list[Run]], Mapping[str, Figure]]


def _read(module: Any) -> Draw:
    if not callable(getattr(module, "figures", None)):
        raise TypeError("a function figures(runs) is wanted")
    found: Draw = module.figures
    return found


_files: Plugins[Draw] = Plugins("osp.bench.figures", "osp.figures", "figure", _read)


def available() -> list[str]:
    """Names of all figures.

    >>> available()[:3]
    ['figure-alpha', 'figure-angle', 'figure-cam']
    """
    return [PREFIX + name for name in sorted({*_lines.FIGURES, *_files.names()})]


def draw(name: str, runs: Sequence[Run], out: Path) -> list[Path]:
    """Draw a figure from these runs into the folder `out`: `name.png` and `name.svg`, or several of both."""
    short = name.removeprefix(PREFIX)
    panels = _lines.FIGURES.get(short)
    figures = _files.get(short) if panels is None else partial(_lines.line_figure, panels=panels)
    if figures is None:
        raise UserError(f"There is no figure {name!r}.{suggest(name, available())}")
    make_folder(out)
    with own_style():
        made = {f"{name}-{ending}" if ending else name: figure for ending, figure in figures(list(runs)).items()}
        return [path for stem, figure in made.items() for path in save_both(figure, out, stem)]
