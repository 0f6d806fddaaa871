"""What OSP gains over its control and over T2T, task by task, from the runs kept in results/: a picture and a table.

python scripts/draw_differences.py [FILE]        (default docs/images/differences.png)

Means of differences paired by seed: in the picture ± twice their standard error, in the table (printed, as Markdown) ±
their standard error, for accuracy with p of the one-sided sign-flip test that OSP is better. One seed has no error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from matplotlib.figure import Figure

from osp.bench.cells import Choice, expand
from osp.bench.grid import find_grid
from osp.bench.numbers import NO_NUMBER, Difference, Report, differences, fill
from osp.bench.store import Store
from osp.cli.bench.options import choice_of
from osp.report.figure import COLORS, MARKERS, own_style, save_png

PANELS = {"accuracy": "accuracy (points)", "auroc": "AUROC (points)", "angle": "angle (degrees)"}
COLUMNS = {"accuracy": "accuracy, OSP - {}", "val_accuracy": "on validation images", "auroc": "AUROC"}
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
TEN = "scripts/search/ten-classes.yaml"
WORKS = (
    Work("MNIST 4-9\n3 labels per class", "scripts/search/mnist.yaml", choice_of("cpu", "100-107")),
    Work("digits\n5 labels", "scripts/search/memory.yaml", choice_of("demo", "0-7,100-115")),
    Work(
        "MNIST 0-5\n10 labels",
        "table4",
        choice_of("cpu", "5-9", datasets="mnist", settings=["batch=32", "steps=300"]),
        osp="both with AOM (OSP)",
        control=ALPHA_0,
        t2t="none (T2T)",
    ),
    Work("10 classes of CIFAR-100\n20 labels", TEN, choice_of("cpu", "0-7")),
    Work("10 classes of Tiny ImageNet\n20 labels", TEN, choice_of("cpu", "0-7", datasets="tinyimagenet")),
    Work("CIFAR-100\n100 labels", "control", choice_of("cpu", "0-4", datasets="cifar100"), control=ALPHA_0),
    Work(
        "CIFAR-10\n400 labels",
        "control",
        choice_of("cpu", "0", datasets="cifar10", settings=["steps=600"]),
        control=ALPHA_0,
    ),
)


@dataclass(frozen=True)
class Done:
    """A task with its runs."""

    work: Work
    report: Report

    def mean(self, row: str) -> str:
        found = self.report.at(row, self.report.table.columns[0]).mean("accuracy")
        return NO_NUMBER if found is None else str(rounded(found, 1))

    def gains(self, measure: str) -> list[Difference]:
        """Of OSP: over the control, over T2T; fewer where they have not been run."""
        report = replace(self.report, measure=measure)
        bases = (self.work.control, self.work.t2t)
        return [each for base in bases for each in differences(report, base) if each.row == self.work.osp]


def looked_up(store: Store) -> list[Done]:
    """The tasks that have been run."""
    found = [Done(work, fill(store, expand(find_grid(work.grid), work.choice))) for work in WORKS]
    return [each for each in found if len(each.gains("accuracy")) == len(BASES)]


def table(tasks: Sequence[Done]) -> str:
    """A row per task: mean accuracies, then what OSP gains over the control and over T2T."""
    titles = [title.format(base) for base in BASES for title in COLUMNS.values()]
    lines = [
        "| " + " | ".join(["task", "seeds", "T2T", "control", "OSP", *titles]) + " |",
        "|---" * (5 + len(titles)) + "|",
    ]
    for each in tasks:
        work, gains = each.work, [each.gains(measure) for measure in COLUMNS]
        means = [each.mean(row) for row in (work.t2t, work.control, work.osp)]
        cells = [words(gain[number]) for number in range(len(BASES)) for gain in gains]
        lines.append("| " + " | ".join([work.name.replace("\n", ", "), str(gains[0][0].seeds), *means, *cells]) + " |")
    return "\n".join(lines)


def words(gain: Difference) -> str:
    """`+1.3 ± 0.5, p 0.03`."""
    if gain.error is None:
        return signed(gain.mean, 1)
    digits = 1 if gain.error >= 0.15 else 2
    p = f", p {gain.p:.2f}" if gain.measure == "accuracy" else ""
    return f"{signed(gain.mean, digits)} ± {gain.error:.{digits}f}{p}"


def signed(number: float, digits: int) -> str:
    """Rounded; no sign before 0."""
    found = rounded(number, digits)
    return f"{found:+}" if found else str(abs(found))


def rounded(number: float, digits: int) -> Decimal:
    """Half away from zero, as by hand: 45.15 is 45.2."""
    return Decimal(str(round(number, 6))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


def draw(tasks: Sequence[Done]) -> Figure:
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=130)
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
    print(target, table(tasks), sep="\n\n")
