"""Draw the rooms of the house: `python scripts/draw_imports.py docs/images/imports.png`.

Layers and their rooms come from the import-linter contract in pyproject.toml, the lines of code are counted in src/osp.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "osp"
WIDTH, GAP = 10.0, 0.16
FACE, EDGE, QUIET = "#eaf2f7", "#2a6f97", "#5c6b73"


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top (doors) to the bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return [re.split(r"\s*[|:]\s*", layer) for layer in contracts[0]["layers"]]


def lines_of_code(room: str) -> int:
    """Lines of a folder's or a file's Python, without empty ones."""
    files = [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").is_file() else sorted((SOURCE / room).rglob("*.py"))
    return sum(1 for file in files for line in file.read_text("utf-8").splitlines() if line.strip())


def two_digits(count: int) -> int:
    """Rounded, so that the drawing stays true for a while.

    >>> two_digits(3342), two_digits(45)
    (3300, 45)
    """
    return int(float(f"{count:.1e}"))


def draw(rows: list[list[str]]) -> Figure:
    """One row per layer, one box per room."""
    figure = Figure(figsize=(9, 0.56 * len(rows) + 0.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(rows):
        y, width = len(rows) - number, (WIDTH - GAP * (len(row) - 1)) / len(row)
        for column, room in enumerate(row):
            x = column * (width + GAP)
            shape = FancyBboxPatch(
                (x + 0.04, y + 0.04), width - 0.08, 0.72, boxstyle="round,pad=0.04", facecolor=FACE, edgecolor=EDGE
            )
            axes.add_patch(shape)
            axes.text(x + width / 2, y + 0.52, room, ha="center", va="center", fontsize=10.5)
            count = f"{two_digits(lines_of_code(room)):,} lines"
            axes.text(x + width / 2, y + 0.2, count, ha="center", va="center", fontsize=7.5, color=QUIET)
    axes.annotate(
        "", (-0.35, 1.0), (-0.35, len(rows) + 0.8), arrowprops={"arrowstyle": "-|>", "color": EDGE, "linewidth": 1.4}
    )
    label = "calls only what stands below"
    axes.text(-0.6, len(rows) / 2 + 0.9, label, rotation=90, ha="center", va="center", fontsize=9, color=QUIET)
    axes.set(xlim=(-0.85, WIDTH + 0.1), ylim=(0.85, len(rows) + 0.95))
    axes.axis("off")
    return figure


def main(target: Path) -> None:
    """The drawing as a PNG, in which the names that it shows also stand as text."""
    figure = draw(layers())
    texts = [text.get_text() for text in figure.axes[0].texts]
    shown = " ".join(text for text in texts if text.isidentifier())
    figure.savefig(target, format="png", metadata={"Software": None, "Description": shown})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
