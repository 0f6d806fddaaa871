"""What OSP gains over the labels alone, over its control and over T2T, task by task, from results/: a picture.

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
BASES = {
    "supervised": "over the labels alone",
    "control with alpha 0": "over its control, which prunes nothing",
    "t2t": "over T2T",
}
"""Rows of the table `control` and what a gain over each is called."""
TASKS: dict[str, Choice] = {
    "digits\n5 labels per class": choice_of("demo", "0-7", datasets="digits", settings=["labels_per_class=5"]),
    "MNIST\n10 labels": choice_of("cpu", "5-7", datasets="mnist"),
    "CIFAR-10\n400 labels": choice_of("cpu", "0-4", datasets="cifar10"),
    "CIFAR-100\n100 labels": choice_of("cpu", "0-4", datasets="cifar100"),
    "CIFAR-100\n10,000 steps": choice_of("cpu", "0-4", datasets="cifar100", settings=["steps=10000"]),
    "Tiny ImageNet\n100 labels": choice_of("cpu", "0-4", datasets="tinyimagenet"),
}


@dataclass(frozen=True)
class Done:
    """A task with its runs."""

    name: str
    table: Table

    def gains(self, measure: str) -> dict[str, Difference]:
        """Of OSP, by what it is compared with; without what has not been run."""
        table = replace(self.table, measure=measure)
        found = {base: [each for each in differences(table, base) if each.row == "osp"] for base in BASES}
        return {base: each[0] for base, each in found.items() if each}


def looked_up(store: Store) -> list[Done]:
    """The tasks in which OSP and something to compare it with have been run."""
    found = [Done(name, fill(store, expand(find_grid("control"), choice))) for name, choice in TASKS.items()]
    return [each for each in found if each.gains("accuracy")]


def draw(tasks: Sequence[Done]) -> Figure:
    figure = Figure(figsize=(10, 1.2 + 0.85 * len(tasks)), layout="constrained", dpi=130)
    for axes, (measure, title) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS.items(), strict=True):
        for place, task in enumerate(tasks):
            gains = task.gains(measure)
            for number, base in enumerate(BASES):
                if (gain := gains.get(base)) is None:
                    continue
                axes.errorbar(
                    gain.mean,
                    place + 0.25 * (number - 1),
                    xerr=None if gain.error is None else 2 * gain.error,
                    color=COLORS[number],
                    marker=MARKERS[number],
                    markerfacecolor="white" if gain.error is None else COLORS[number],
                    capsize=3,
                    label=BASES[base] if place == 0 else None,
                )
        axes.axvline(0, color="#888888", linewidth=1)
        axes.set_yticks(range(len(tasks)), [f"{task.name}, {_seeds(task)}" for task in tasks])
        axes.set_title(title)
    axes.invert_yaxis()
    handles, names = axes.get_legend_handles_labels()
    figure.suptitle("What OSP gains (right of the line) or loses")
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _seeds(task: Done) -> str:
    count = max(gain.seeds for gain in task.gains("accuracy").values())
    return f"{count} seed{'s' if count > 1 else ''}"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/differences.png")
    with own_style():
        save_png(draw(looked_up(Store(Path("results")))), target)
    print(target)
