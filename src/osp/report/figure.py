"""Figures that leave the user's matplotlib alone, that nothing in it can break, and that can be read in grey."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from osp.files import write_bytes

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#56b4e9", "#a6761d", "#e69f00", "#666666", "#b2182b")
"""Okabe and Ito's, which color-blind people can tell apart, and some more."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)))
"""Seven line styles beside ten colors and markers: no two of seventy lines look alike, in color or in grey."""


@contextmanager
def own_style() -> Iterator[None]:
    """Inside, matplotlib's own defaults hold, whatever a matplotlibrc says (`text.usetex` needs a LaTeX), and text is
    text: a class named `a$\\frac$` is no formula. Afterwards all is as it was; the backend is never touched."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # names in any script
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False
        matplotlib.rcParams["axes.spines.top"] = matplotlib.rcParams["axes.spines.right"] = False
        matplotlib.rcParams["svg.hashsalt"] = "osp"  # the same figure gives the same file
        yield


def line_style(number: int) -> dict[str, Any]:
    """Color, marker and dashes of the n-th line of a figure."""
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
    }


def plain_ticks(axis: Any) -> None:
    """Numbers as text on a logarithmic axis, whose own labels are formulas."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if abs(value) < 1e6 else f"{value:.0e}"))
    axis.set_minor_formatter(NullFormatter())


def png(figure: Figure) -> bytes:
    """Drawn without pyplot, and so without a backend."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def svg(figure: Figure, transparent: bool = False) -> bytes:
    """Letters as outlines: it looks the same whatever fonts there are. No date: the same figure gives the same file."""
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=transparent)
    return buffer.getvalue()


def save_png(figure: Figure, path: Path) -> None:
    """Draw a figure into a file."""
    write_bytes(path, png(figure))


def save_both(figure: Figure, folder: Path, name: str) -> list[Path]:
    """`name.png` and `name.svg` in a folder."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    write_bytes(paths[0], png(figure))
    write_bytes(paths[1], svg(figure))
    return paths
