"""Figures of docs/reproduction.md, measured.md, comparison.md and osp.md come from `results/`: check, or write again.

python scripts/check_results.py            (`make check-results`; exit code 1 if a figure has changed)
python scripts/check_results.py --write    (write the tables of the pages again, after new runs, and name the sentences
                                            with a figure that has left a table)

A table of a page stands between two comments, below the command that prints its numbers in full:

    osp bench control --datasets cifar100 --seeds 0-2 --store results --no-run --against supervised

    <!-- table: accuracy, paper, auroc, gain accuracy -->
    <!-- end -->

Its rows are those of the command. A measure stands as mean ± standard deviation over seeds, `paper` is the number in
the paper, `gain MEASURE` the mean difference to the row of `--against`, paired by seed, ± its standard error, with p
of the one-sided sign-flip test. A command with several columns has them side by side, for one measure or gain (and
`seeds`, `paper`); below one command may stand several tables. `<!-- table: repeats -->` needs no command: it compares
the runs of `results/repeats` with those of the same name in `results/`. In sentences of the first two pages, every
number with a decimal point must stand in one of their tables or commands.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from osp.bench.cells import Cell, Table
from osp.bench.numbers import Difference, differences, fill
from osp.bench.renderers import pipes
from osp.bench.store import Store
from osp.cli.bench.options import choice_of, tables_of

Values = dict[str, float]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WHOLE = ("reproduction.md", "measured.md")
"""Pages whose sentences are compared, too."""
TABLES = ("comparison.md", "osp.md")
"""Only their tables are: their sentences also speak of runs that are not stored."""
BLOCK = re.compile(r"(?P<head>^<!-- table: (?P<columns>[^>]*) -->\n)(?P<table>.*?)(?P<end>^<!-- end -->$)", re.M | re.S)
COMMAND = re.compile(r"^ {4}osp bench (?:[^\n]*\\\n)*[^\n]*", re.M)
FIGURE = re.compile(r"\d+\.\d+")
SHORT = {
    "accuracy": "accuracy",
    "val_accuracy": "on validation images",
    "auroc": "AUROC",
    "own_auroc": "by its own score",
    "msp_auroc": "by softmax",
    "purity": "ID among the kept",
    "recall": "kept of the ID",
    "angle": "angle",
    "interclass_variance": "variance",
}


def parse(command: str) -> tuple[str, str | None, Table]:
    """The numbers that a command shows: its name, the row of `--against`, the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    for option in ("--methods", "--datasets", "--ratios", "--against", "--measure"):
        parser.add_argument(option)
    parser.add_argument("--store", required=True)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--no-run", action="store_true", required=True)
    given = parser.parse_args(shlex.split(command.replace("\\\n", " "))[2:])
    choice = choice_of(given.scale, given.seeds, given.methods, given.datasets, given.ratios, given.set)
    return given.name, given.against, fill(stored(given.store), tables_of([given.name], choice)[0])


@cache
def stored(name: str = "results") -> Store:
    return Store(ROOT / name)


def table(command: str, columns: list[str]) -> str:
    """As Markdown; rows without any run are left out."""
    _, base, found = parse(command)
    wide = len(found.columns) > 1
    headings = list(found.columns) if wide else [heading(each, base) for each in columns]
    rows = []
    for row in found.rows:
        if row == base and columns[0].startswith("gain "):  # over itself
            continue
        if wide:
            cells = [found.cell(row, column) for column in found.columns]
            texts = [beside(found, cell, base, columns) for cell in cells]
        else:
            cells = [found.cell(row, found.columns[0])]
            texts = [text_of(found, cells[0], base, each) for each in columns]
        if any(cell.runs for cell in cells):
            rows.append([row, *texts])
    return pipes(["", *headings], rows) + "\n"


def heading(column: str, base: str | None) -> str:
    measure = column.removeprefix("gain ")
    known = SHORT.get(measure, measure)
    return f"{known}, gain over {base}" if column.startswith("gain ") else known


def beside(found: Table, cell: Cell, base: str | None, columns: list[str]) -> str:
    """One measure or gain of a cell and, where asked for, how many seeds it has and the paper's number."""
    more = []
    if "seeds" in columns and cell.runs:
        more.append(f"{len(cell.runs)} seed{'s' * (len(cell.runs) > 1)}")
    if "paper" in columns and cell.paper is not None:
        more.append(f"paper {cell.paper}")
    text = text_of(found, cell, base, columns[0])
    return f"{text} ({', '.join(more)})" if more else text


def text_of(found: Table, cell: Cell, base: str | None, column: str) -> str:
    if column == "paper":
        return "-" if cell.paper is None else str(cell.paper)
    if column == "seeds":
        return str(len(cell.runs))
    if not column.startswith("gain "):
        return number_of(cell, column)
    if base is None:
        raise SystemExit(f"The command above `{column}` has no --against.")
    pairs = differences(replace(found, measure=column.removeprefix("gain ")), base)
    return next((words(each) for each in pairs if (each.row, each.column) == (cell.row, cell.column)), "")


def number_of(cell: Cell, measure: str) -> str:
    mean, spread = cell.mean(measure), cell.deviation(measure)
    if mean is None:
        return cell.empty
    digits = 2 if abs(mean) < 2 else 1
    return str(rounded(mean, digits)) + (f" ± {rounded(spread, digits)}" if spread is not None else "")


def words(gain: Difference) -> str:
    """`+1.3 ± 0.5, p 0.03`."""
    if gain.error is None:
        return signed(gain.mean, 1)
    digits = 1 if gain.error >= 0.15 else 2
    p = f", p {gain.p:.{3 if gain.p < 0.01 else 2}f}" if gain.p is not None else ""
    return f"{signed(gain.mean, digits)} ± {rounded(gain.error, digits)}{p}"


def signed(number: float, digits: int) -> str:
    """Rounded; no sign before 0."""
    found = rounded(number, digits)
    return f"{found:+}" if found else str(abs(found))


def rounded(number: float, digits: int) -> Decimal:
    """Half away from zero, as by hand: 45.15 is 45.2."""
    return Decimal(str(round(number, 6))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


def repeats() -> str:
    """Runs that were made twice, by task and method: as they are stored, and again. Seconds are not compared."""
    groups = defaultdict[str, list[tuple[Values, Values]]](list)
    for name, line in stored("results/repeats").lines().items():
        groups[task_of(line["plan"])].append((values_of(stored().lines()[name]), values_of(line)))
    rows = []
    for task, pairs in sorted(groups.items()):
        means = [mean(pair[turn][key] for pair in pairs) for key in ("accuracy", "auroc") for turn in (0, 1)]
        farthest = max(abs(first["accuracy"] - again["accuracy"]) for first, again in pairs)
        same = sum(first == again for first, again in pairs)
        rows.append([task, str(len(pairs)), *(str(rounded(each, 1)) for each in (*means, farthest)), str(same)])
    moved = ["accuracy of one run moved by up to", "the same in every digit"]
    return pipes(["", "runs", "accuracy", "again", "AUROC", "again", *moved], rows) + "\n"


def task_of(plan: Mapping[str, Any]) -> str:
    beside = f" beside {plan['ood_data']}" if plan["ood_data"] else ""
    labels, steps = plan["labels_per_class"], plan["steps"]
    return f"{plan['data']}{beside}, {labels} labels per class, {steps:,} steps: {plan['method']}"


def values_of(line: Mapping[str, Any]) -> Values:
    """All numbers of a result, but for how long it took."""
    return {name: value for name, value in line["result"].items() if isinstance(value, float) and name != "seconds"}


def written(text: str) -> str:
    """The page with its tables written again."""

    def again(block: re.Match[str]) -> str:
        if block["columns"] == "repeats":
            return f"{block['head']}{repeats()}{block['end']}"
        above = COMMAND.findall(text[: block.start()])
        if not above:
            raise SystemExit(f"No command stands above the table {block['columns']!r}.")
        columns = [each.strip() for each in block["columns"].split(",")]
        return f"{block['head']}{table(above[-1].strip(), columns)}{block['end']}"

    return BLOCK.sub(again, text)


def figures(text: str) -> set[str]:
    return set(FIGURE.findall(text))


def sentences(text: str) -> str:
    """What is neither a table of results nor a command, code or address."""
    text = COMMAND.sub("", BLOCK.sub("", text))
    text = re.sub(r"^```.*?^```$|^ {4}[^\n]*$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", text)


def sources(text: str) -> set[str]:
    """The figures that sentences may have: those of tables and commands."""
    return figures("\n".join([*(each["table"] for each in BLOCK.finditer(text)), *COMMAND.findall(text)]))


def changed(page: str) -> Iterator[str]:
    """Lines of tables that are not what `results/` say."""
    fresh = written(page)
    for old, new in zip(page.splitlines(), fresh.splitlines(), strict=False):
        if old != new:
            yield f"the page has\n  {old}\nand results/ have\n  {new}"
    if len(page.splitlines()) != len(fresh.splitlines()):
        yield "a table has other rows than results/"


def strange(page: str, known: set[str]) -> Iterator[str]:
    """Figures of sentences that stand in no table."""
    for line in sentences(page).splitlines():
        for figure in sorted(figures(line) - known):
            yield f"{figure} stands in no table: {line.strip()}"


def outdated(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Sentences with a figure that has left a table, although it may still stand in another."""
    gone = set[str]()
    for name, page in before.items():
        blocks = zip(BLOCK.finditer(page), BLOCK.finditer(after[name]), strict=True)
        gone = gone.union(*(figures(old["table"]) - figures(new["table"]) for old, new in blocks))
    for name in WHOLE:
        for line in sentences(after[name]).splitlines():
            if found := sorted(figures(line) & gone):
                yield f"{name}: {', '.join(found)} left a table; is it still so? {line.strip()}"


def wrong(folder: Path) -> Iterator[str]:
    """What the pages say and `results/` do not."""
    pages = {name: (folder / name).read_text("utf-8") for name in (*WHOLE, *TABLES)}
    known = set[str]().union(*(sources(pages[name]) for name in WHOLE))
    for name, page in pages.items():
        yield from (f"{name}: {each}" for each in changed(page))
        yield from (f"{name}: {each}" for each in (strange(page, known) if name in WHOLE else ()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables of the pages again")
    paths = [DOCS / name for name in (*WHOLE, *TABLES)]
    if parser.parse_args().write:
        before = {path.name: path.read_text("utf-8") for path in paths}
        after = {name: written(page) for name, page in before.items()}
        for path in paths:
            path.write_text(after[path.name], "utf-8")
        print(*outdated(before, after), sep="\n")
    found, text = list(wrong(DOCS)), "".join(path.read_text("utf-8") for path in paths)
    print(*found, sep="\n", file=sys.stderr)
    print(f"{len(BLOCK.findall(text))} tables, {len(sources(text))} figures: {len(found)} wrong")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
