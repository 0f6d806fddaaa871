"""Figures that leave the user's matplotlib alone, and that nothing in it can break."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from osp.files import write_bytes


@contextmanager
def own_style() -> Iterator[None]:
    """Inside, matplotlib's own defaults hold, whatever a matplotlibrc says (`text.usetex` needs a LaTeX), and text is
    text: a class named `a$\\frac$` is no formula. Afterwards all is as it was; the backend is never touched."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # names in any script
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False
        yield


def save_png(figure: Figure, path: Path) -> None:
    """Draw a figure into a file, without pyplot and so without a backend."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue())
