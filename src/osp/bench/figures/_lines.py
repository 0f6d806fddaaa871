"""Figures of lines: one row of panels per data set, one line per method. Those of the paper are listed in `FIGURES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from osp.report.charts import Line, draw_lines, over_seeds
from osp.runs.run import Run

Points = Iterable[tuple[float, float]]

ORDER = ("supervised", "fixmatch", "mtc", "safe-student", "t2t", "osp")
"""Lines of the paper's Figure 4 first, so that a method looks the same in all figures; others follow by name."""


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: which points a run gives, and what the axes are."""

    points: Callable[[Run], Points]
    x: str
    y: str


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of each method, in a fixed order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    place = {name: number for number, name in enumerate(ORDER)}
    return {name: found[name] for name in sorted(found, key=lambda name: (place.get(name, len(ORDER)), name))}


def by_data(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs on each data set."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.data_name, []).append(run)
    return dict(sorted(found.items()))


def line_figure(runs: list[Run], panels: Sequence[Panel]) -> dict[str, Figure]:
    """A row per data set, the panels beside one another."""
    sets = by_data(runs) or {"": []}
    size = (5.2 * len(panels), 3.9 * len(sets))
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    rows = figure.subplots(len(sets), len(panels), squeeze=False)
    for axes_row, (data, members) in zip(rows, sets.items(), strict=True):
        for axes, panel in zip(axes_row, panels, strict=True):
            lines = lines_of(members, panel.points)
            draw_lines(axes, lines, panel.x, panel.y, headed(data, lines))
            tidy(axes, lines)
    return {"": figure}


def lines_of(runs: list[Run], points: Callable[[Run], Points]) -> list[Line]:
    """A line per method that has any points."""
    lines = [
        over_seeds(method, (point for run in members for point in points(run)))
        for method, members in by_method(runs).items()
    ]
    return [line for line in lines if line.x]


def headed(data: str, lines: list[Line]) -> str:
    """The data set and how many seeds each point is the mean of."""
    seeds = min((line.seeds for line in lines), default=0)
    return f"{data}, {seeds} seed{'s' if seeds > 1 else ''}" if seeds else data


def tidy(axes: Axes, lines: list[Line]) -> None:
    """Ticks at the settings that were run, where they are few."""
    places = sorted({x for line in lines for x in line.x})
    if 0 < len(places) <= 12:
        axes.set_xticks(places, [f"{place:g}" for place in places])


def number(run: Run, key: str, at: float | None) -> Points:
    """One point: a number of the result at a setting; none where either is missing."""
    value = run.number(key)
    return [] if value is None or at is None else [(at, value)]


def evaluations(run: Run, key: str) -> Points:
    """A number of each evaluation during training, by step."""
    return [
        (line["step"], line[key])
        for line in run.metrics
        if line.get("kind") == "eval" and isinstance(line.get(key), int | float)
    ]


def alpha(run: Run) -> float | None:
    """The share that OSP prunes; None for other methods."""
    value = run.plan.options.get("alpha") if run.method == "osp" else None
    return float(value) if isinstance(value, int | float) else None


ACCURACY = "test accuracy (%)"

FIGURES: dict[str, tuple[Panel, ...]] = {
    "alpha": (
        Panel(lambda run: number(run, "accuracy", alpha(run)), "α", ACCURACY),
        Panel(lambda run: number(run, "auroc", alpha(run)), "α", "AUROC (%)"),
    ),
    "angle": (Panel(lambda run: evaluations(run, "angle"), "step", "angle between ID and OOD (degrees)"),),
    "labels": (
        Panel(lambda run: number(run, "accuracy", run.plan.labels_per_class), "labeled images per class", ACCURACY),
    ),
    "ratio": (Panel(lambda run: number(run, "accuracy", run.number("ood_ratio")), "OOD share of the pool", ACCURACY),),
    "variance": (Panel(lambda run: evaluations(run, "interclass_variance"), "step", "inter-class variance"),),
}
"""The panels of each figure, by its name without `figure-`."""
