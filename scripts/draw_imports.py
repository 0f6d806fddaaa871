"""Draw which room of the house calls which: `python scripts/draw_imports.py docs/images/imports.png`.

Rooms and their order come from the import-linter contract in pyproject.toml, arrows from the code itself.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import grimp
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]


def layers() -> list[list[str]]:
    """From the top (doors) to the bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    rows = [re.split(r"\s*[|:]\s*", layer) for layer in contracts[0]["layers"]]
    return [row for row in rows if "errors" not in row]  # every room calls those


def calls(rooms: set[str]) -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports something of the second."""
    graph = grimp.build_graph("osp", cache_dir=None)
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = tuple(name.split(".")[1] for name in (module, imported) if name.count("."))
            if len(pair) == 2 and pair[0] != pair[1] and set(pair) <= rooms:
                found.add((pair[0], pair[1]))
    return found


def main(target: Path) -> None:
    rows = layers()
    place = {
        name: ((column + 1) / (len(row) + 1), len(rows) - number)
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    figure = Figure(figsize=(9, 0.72 * len(rows)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for caller, called in sorted(calls(set(place))):
        (x, y), (to_x, to_y) = place[caller], place[called]
        near = y - to_y <= 1
        axes.annotate(
            "",
            (to_x, to_y + 0.22),
            (x, y - 0.22),
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#2a6f97" if near else "#9db4c0",
                "linewidth": 1.1 if near else 0.7,
                "connectionstyle": f"arc3,rad={0.0 if near else 0.12}",
            },
        )
    for name, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": "#f4f7f9", "edgecolor": "#2a6f97"}
        axes.text(x, y, name, ha="center", va="center", fontsize=11, bbox=box)
    axes.set(xlim=(0, 1), ylim=(0.4, len(rows) + 0.6))
    axes.axis("off")
    figure.savefig(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
