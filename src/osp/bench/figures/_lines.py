"""Figures of lines: one row of panels per data set, one line per method. Those of the paper are listed in `FIGURES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from osp.report.charts import Line, draw_lines, over_seeds
from osp.report.figure import plain_ticks
from osp.runs.run import Run

Points = Iterable[tuple[float, float]]

ORDER = ("supervised", "fixmatch", "mtc", "safe-student", "t2t", "osp")
"""Lines of the paper's Figure 4 first, so that a method looks the same in all figures; others follow by name."""


def method(run: Run) -> str:
    return run.method


def or_control(run: Run) -> str:
    """The method, and whether it is OSP that prunes nothing."""
    return f"{run.method}, alpha 0" if alpha(run) == 0 else run.method


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: which points a run gives, and what the axes are."""

    points: Callable[[Run], Points]
    x: str
    y: str
    cost: str = ""
    """A number of the result that takes the place of x, on a logarithmic axis: its mean over the seeds at each x."""
    line: Callable[[Run], str] = method
    """Which line a run belongs to."""
    over_ratios: bool = False
    """Whether x is the share of OOD images."""


def by_method(runs: Sequence[Run], name_of: Callable[[Run], str] = method) -> dict[str, list[Run]]:
    """Runs of each method, in a fixed order."""
    place = {name: number for number, name in enumerate(ORDER)}
    names = sorted({name_of(run) for run in runs}, key=lambda name: (place.get(name, len(ORDER)), name))
    return {name: [run for run in runs if name_of(run) == name] for name in names}


def by_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs on each data set."""
    names = sorted({run.data_name for run in runs})
    return {name: [run for run in runs if run.data_name == name] for name in names}


def by_task(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs on each data set, those of several shares of OOD images apart."""
    found: dict[str, list[Run]] = {}
    for data, members in by_data(runs).items():
        ratios = {run.number("ood_ratio") for run in members}
        for ratio in sorted(ratios, key=lambda each: -1 if each is None else each):
            name = data if len(ratios) == 1 or ratio is None else f"{data}, {100 * ratio:.4g} % OOD"
            found.setdefault(name, []).extend(run for run in members if run.number("ood_ratio") == ratio)
    return found


def line_figure(runs: list[Run], panels: Sequence[Panel]) -> dict[str, Figure]:
    """A row per data set, the panels beside one another."""
    sets = (by_data(runs) if any(panel.over_ratios for panel in panels) else by_task(runs)) or {"": []}
    size = (5.2 * len(panels), 3.9 * len(sets))
    figure = Figure(figsize=size, layout="constrained", dpi=120)
    rows = figure.subplots(len(sets), len(panels), squeeze=False)
    for axes_row, (data, members) in zip(rows, sets.items(), strict=True):
        for axes, panel in zip(axes_row, panels, strict=True):
            lines = lines_of(members, panel)
            seeds = min((line.seeds for line in lines), default=0)  # that a point is the mean of
            heading = f"{data}, {seeds} seed{'s' if seeds > 1 else ''}" if seeds else data
            draw_lines(axes, lines, panel.x, panel.y, heading)
            places = sorted({x for line in lines for x in line.x})
            if panel.cost and lines:
                axes.set_xscale("log")
                plain_ticks(axes.xaxis)
            elif 0 < len(places) <= 12:  # the settings that were run
                axes.set_xticks(places, [f"{place:g}" for place in places])
    return {"": figure}


def lines_of(runs: list[Run], panel: Panel) -> list[Line]:
    """The lines that have any points."""
    lines = []
    for name, members in by_method(runs, panel.line).items():
        points = [(run, x, y) for run in members for x, y in panel.points(run)]
        line = over_seeds(name, ((x, y) for _, x, y in points))
        if panel.cost:
            costs = over_seeds(name, ((x, run.number(panel.cost) or 0) for run, x, _ in points))
            line = replace(line, x=costs.y)
        lines.append(line)
    return [line for line in lines if line.x]


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


def during_training(key: str, y: str) -> Panel:
    return Panel(lambda run: evaluations(run, key), "step", y, line=or_control)


def what_it_buys(cost: str, x: str) -> Panel:
    """Runs of several lengths, each tested once at its end: a point per number of steps."""
    return Panel(lambda run: number(run, "accuracy", run.plan.steps if run.number(cost) else None), x, ACCURACY, cost)


ACCURACY = "test accuracy (%)"

FIGURES: dict[str, tuple[Panel, ...]] = {
    "alpha": (
        Panel(lambda run: number(run, "accuracy", alpha(run)), "α", ACCURACY),
        Panel(lambda run: number(run, "auroc", alpha(run)), "α", "AUROC (%)"),
    ),
    "angle": (during_training("angle", "angle between ID and OOD (degrees)"),),
    "curve": (
        during_training("val_accuracy", "validation accuracy (%)"),
        during_training("pool_auroc", "AUROC in the pool (%)"),
    ),
    "labels": (
        Panel(lambda run: number(run, "accuracy", run.plan.labels_per_class), "labeled images per class", ACCURACY),
    ),
    "ratio": (
        Panel(
            lambda run: number(run, "accuracy", run.number("ood_ratio")),
            "OOD share of the pool",
            ACCURACY,
            over_ratios=True,
        ),
    ),
    "time": (
        what_it_buys("seconds", "seconds of training and test"),
        what_it_buys("images_seen", "images seen"),
    ),
    "variance": (during_training("interclass_variance", "inter-class variance"),),
}
"""The panels of each figure, by its name without `figure-`."""
