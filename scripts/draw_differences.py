"""What OSP gains over its control and over T2T, task by task, from the runs kept in results/: a picture and a table.

python scripts/draw_differences.py [FILE]        (default docs/images/differences.png)

Means of differences paired by seed: in the picture ± twice their standard error, in the table (printed, as Markdown) ±
their standard error, for accuracy with p of the one-sided sign-flip test that OSP is better. One seed has no error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from osp.bench.cells import Choice, expand
from osp.bench.grid import find_grid
from osp.bench.numbers import Difference, differences, fill
from osp.bench.store import Store
from osp.report.figure import COLORS, MARKERS, own_style, save_png

SHORT = ("batch=32", "steps=300")
MEASURES = {"accuracy": "accuracy (points)", "auroc": "AUROC (points)", "angle": "angle (degrees)"}


@dataclass(frozen=True)
class Work:
    """A task, the grid that has its runs, and how the rows are named there."""

    name: str
    grid: str
    choice: Choice
    osp: str = "osp"
    bases: tuple[str, str] = ("control", "t2t")


def seeds(*ranges: range) -> tuple[int, ...]:
    return tuple(seed for each in ranges for seed in each)


TASKS = (
    Work("MNIST 4-9\n3 labels per class", "scripts/search/mnist.yaml", Choice(seeds=seeds(range(100, 108)))),
    Work(
        "digits\n5 labels",
        "scripts/search/memory.yaml",
        Choice(scale="demo", seeds=seeds(range(8), range(100, 116))),
    ),
    Work(
        "MNIST 0-5\n10 labels",
        "table4",
        Choice(seeds=seeds(range(5, 10)), datasets=("mnist",), settings=SHORT),
        osp="both with AOM (OSP)",
        bases=("control with alpha 0", "none (T2T)"),
    ),
    Work("10 classes of CIFAR-100\n20 labels", "scripts/search/ten-classes.yaml", Choice(seeds=seeds(range(8)))),
    Work(
        "10 classes of Tiny ImageNet\n20 labels",
        "scripts/search/ten-classes.yaml",
        Choice(seeds=seeds(range(8)), datasets=("tinyimagenet",)),
    ),
    Work(
        "CIFAR-100\n100 labels",
        "control",
        Choice(seeds=seeds(range(5)), datasets=("cifar100",)),
        bases=("control with alpha 0", "t2t"),
    ),
    Work(
        "CIFAR-10\n400 labels",
        "control",
        Choice(seeds=(0,), datasets=("cifar10",), settings=("steps=600",)),
        bases=("control with alpha 0", "t2t"),
    ),
)


def gains(store: Store, work: Work, measure: str) -> list[Difference]:
    """Of OSP: over the control, over T2T."""
    report = fill(store, expand(find_grid(work.grid), work.choice), measure)
    return [each for base in work.bases for each in differences(report, base) if each.row == work.osp]


def done(store: Store) -> list[Work]:
    """The tasks that have been run."""
    return [work for work in TASKS if gains(store, work, "accuracy")]


def table(store: Store) -> str:
    """A row per task: mean accuracies, then what OSP gains."""
    lines = ["| task | seeds | T2T | control | OSP | " + " | ".join(COLUMNS) + " |", "|---" * (5 + len(COLUMNS)) + "|"]
    for work in done(store):
        found = {measure: gains(store, work, measure) for measure, _ in COLUMNS.values()}
        report = fill(store, expand(find_grid(work.grid), work.choice), "accuracy")
        rows = [report.at(row, report.table.columns[0]).mean("accuracy") for row in (*work.bases[::-1], work.osp)]
        means = [f"{mean:.1f}" if mean is not None else "-" for mean in rows]
        cells = [words(found[measure][number]) for measure, number in COLUMNS.values()]
        seeds = str(found["accuracy"][0].seeds)
        lines.append("| " + " | ".join([work.name.replace("\n", ", "), seeds, *means, *cells]) + " |")
    return "\n".join(lines)


COLUMNS = {
    "accuracy, OSP - control": ("accuracy", 0),
    "on validation images": ("val_accuracy", 0),
    "AUROC": ("auroc", 0),
    "accuracy, OSP - T2T": ("accuracy", 1),
    "on validation images ": ("val_accuracy", 1),
    "AUROC ": ("auroc", 1),
}
"""Measure, and which of a task's bases it is compared with, by title."""


def words(each: Difference) -> str:
    if each.error is None:
        return f"{each.mean:+.1f}"
    digits = 1 if each.error >= 0.15 else 2
    return f"{each.mean:+.{digits}f} ± {each.error:.{digits}f}" + (
        f", p {each.p:.2f}" if each.measure == "accuracy" else ""
    )


def draw(store: Store) -> Figure:
    tasks = done(store)
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=130)
    for axes, (measure, title) in zip(figure.subplots(1, len(MEASURES), sharey=True), MEASURES.items(), strict=True):
        labels = []
        for place, work in enumerate(tasks):
            found = gains(store, work, measure)
            labels.append(f"{work.name}, {found[0].seeds} seed{'s' if found[0].seeds > 1 else ''}")
            for number, each in enumerate(found):
                axes.errorbar(
                    each.mean,
                    place + 0.3 * number - 0.15,
                    xerr=2 * each.error if each.error is not None else None,
                    color=COLORS[number],
                    marker=MARKERS[number],
                    markerfacecolor=COLORS[number] if each.error is not None else "white",
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
    results = Store(Path("results"))
    with own_style():
        save_png(draw(results), target)
    print(target, table(results), sep="\n\n")
