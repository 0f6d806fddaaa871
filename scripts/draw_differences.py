"""What OSP gains over its control and over T2T, task by task, from the runs kept in results/: a picture.

python scripts/draw_differences.py [FILE]        (default docs/images/differences.png)

Means of differences paired by seed ± twice their standard error. One seed has no error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from osp.bench.cells import Choice, Table, expand
from osp.bench.grid import find_grid
from osp.bench.numbers import Difference, differences, fill
from osp.bench.store import Store
from osp.cli.bench.options import choice_of
from osp.report.figure import COLORS, MARKERS, own_style, save_png

PANELS = {"accuracy": "accuracy (points)", "auroc": "AUROC (points)", "angle": "angle (degrees)"}
BASES = ("control", "T2T")


@dataclass(frozen=True)
class Work:
    """A task, the grid that has its runs, and how OSP, its control and T2T are called there."""

    name: str
    grid: str
    choice: Choice
    osp: str = "osp"
    control: str = "control"
    t2t: str = "t2t"


ALPHA_0 = "control with alpha 0"
WORKS = (
    Work(
        "digits\n5 labels per class",
        "table4",
        choice_of("demo", "0-7", datasets="digits", settings=["labels_per_class=5"]),
        osp="both with AOM (OSP)",
        control=ALPHA_0,
        t2t="none (T2T)",
    ),
    Work("MNIST\n10 labels", "control", choice_of("cpu", "5-7", datasets="mnist"), control=ALPHA_0),
    Work("CIFAR-10\n400 labels", "control", choice_of("cpu", "0-2", datasets="cifar10"), control=ALPHA_0),
    Work("CIFAR-100\n100 labels", "control", choice_of("cpu", "0-4", datasets="cifar100"), control=ALPHA_0),
    Work("Tiny ImageNet\n100 labels", "control", choice_of("cpu", "0", datasets="tinyimagenet"), control=ALPHA_0),
)


@dataclass(frozen=True)
class Done:
    """A task with its runs."""

    work: Work
    table: Table

    def gains(self, measure: str) -> list[Difference]:
        """Of OSP: over the control, over T2T; fewer where they have not been run."""
        table = replace(self.table, measure=measure)
        bases = (self.work.control, self.work.t2t)
        return [each for base in bases for each in differences(table, base) if each.row == self.work.osp]


def looked_up(store: Store) -> list[Done]:
    """The tasks that have been run."""
    found = [Done(work, fill(store, expand(find_grid(work.grid), work.choice))) for work in WORKS]
    return [each for each in found if len(each.gains("accuracy")) == len(BASES)]


def draw(tasks: Sequence[Done]) -> Figure:
    figure = Figure(figsize=(10, 1.2 + 0.9 * len(tasks)), layout="constrained", dpi=130)
    for axes, (measure, title) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
        labels = []
        for place, task in enumerate(tasks):
            gains = task.gains(measure)
            labels.append(f"{task.work.name}, {gains[0].seeds} seed{'s' if gains[0].seeds > 1 else ''}")
            for number, gain in enumerate(gains):
                axes.errorbar(
                    gain.mean,
                    place + 0.3 * number - 0.15,
                    xerr=2 * gain.error if gain.error is not None else None,
                    color=COLORS[number],
                    marker=MARKERS[number],
                    markerfacecolor=COLORS[number] if gain.error is not None else "white",
                    capsize=3,
                    label=("over the control, which prunes nothing", "over T2T")[number] if place == 0 else None,
                )
        axes.axvline(0, color="#888888", linewidth=1)
        axes.set_yticks(range(len(tasks)), labels)
        axes.set_title(title)
    axes.invert_yaxis()
    handles, names = axes.get_legend_handles_labels()
    figure.suptitle("What OSP gains (right of the line) or loses")
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/differences.png")
    tasks = looked_up(Store(Path("results")))
    with own_style():
        save_png(draw(tasks), target)
    print(target)
