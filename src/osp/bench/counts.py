"""The settings of the paper's Table 3, counted in the splits that runs are given."""

from __future__ import annotations

from dataclasses import dataclass

from osp.bench.cells import Choice
from osp.bench.grid import Grid
from osp.errors import UserError
from osp.recipe import Recipe, apply_assignments, make_plan

HEADINGS = ("ID classes", "OOD classes", "labelled", "validation", "pool", "OOD in it", "test", "OOD test")


@dataclass(frozen=True)
class Counts:
    """Of one data set at one ratio; None where its images are not at hand."""

    row: str
    numbers: tuple[int, ...] | None
    paper: tuple[float | None, ...] | None
    problem: str = ""


def count(grid: Grid, choice: Choice) -> list[Counts]:
    """Each data set of the table at each ratio."""
    from osp.engine.data import open_data

    found = []
    for data in choice.datasets or grid.datasets:
        for ratio in choice.ratios or grid.ratios:
            fields = {**grid.fields, **choice.fields, "data": data, "ood_ratio": ratio, "seed": choice.seeds[0]}
            plan = make_plan(Recipe(**apply_assignments(fields, list(choice.settings))))
            paper = grid.paper.rows.get(data)
            try:
                opened = open_data(plan)
            except UserError as error:
                found.append(Counts(f"{data} {ratio:g}", None, paper, str(error)))
                continue
            split, classes = opened.split, len(opened.split.id_classes)
            numbers = (
                classes,
                len(opened.source.class_names) - classes,
                len(split.labeled),
                len(split.val),
                len(split.unlabeled),
                int(split.unlabeled_is_ood.sum()),
                len(split.test),
                len(split.test_ood),
            )
            found.append(Counts(f"{data} {ratio:g}", numbers, paper))
    return found


def markdown(grid: Grid, counts: list[Counts]) -> str:
    lines = [f"# {grid.title}\n", grid.about + "\n", "| | " + " | ".join((*HEADINGS, "paper")) + " |"]
    lines.append("|---" * (len(HEADINGS) + 2) + "|")
    for each in counts:
        numbers = [f"{n:,}" for n in each.numbers] if each.numbers else ["no data"] + [""] * (len(HEADINGS) - 1)
        lines.append(f"| {each.row} | " + " | ".join([*numbers, paper_text(each)]) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in grid.notes)]) + "\n"


def paper_text(counts: Counts) -> str:
    """The paper's ID and OOD classes, labels and size of the pool."""
    return (
        "-" if counts.paper is None else " / ".join(f"{number:,.0f}" for number in counts.paper if number is not None)
    )
