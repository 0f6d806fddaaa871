"""A table with its numbers, as the store has them: means over seeds, what they cost, and which of them are bold.

The best of a column is bold only where an exact one-sided sign-flip test over the seeds both have finds it better than
every other row (p < 0.05, which takes five seeds at least).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from osp.bench.cells import DATA_VARIANT, Cell, Table
from osp.bench.grid import LOWER, MEASURES, NEITHER
from osp.bench.jobs import KeyCache
from osp.bench.store import Store
from osp.errors import UserError, suggest
from osp.runs.run import Run

LEVEL = 0.05
TEST = "bold: better than every other row by an exact one-sided sign-flip test over the seeds both have, p < 0.05"
NOT_RUN = "not run"
NO_NUMBER = "-"
"""Run, but not a number that such a method has: the purity of a partition that it does not make."""


@dataclass(frozen=True)
class Filled:
    """A cell with what the store has for it."""

    cell: Cell
    runs: tuple[Run, ...] = ()
    stale: tuple[Run, ...] = ()
    """Shown as such, never mixed in."""
    problems: tuple[str, ...] = ()
    """Results that could not be read, and why runs failed."""

    def values(self, measure: str) -> dict[int, float]:
        """By seed."""
        found = {int(run.plan.seed): number(run.result, measure) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, measure: str) -> float | None:
        values = list(self.values(measure).values())
        return statistics.fmean(values) if values else None

    def deviation(self, measure: str) -> float | None:
        values = list(self.values(measure).values())
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def marks(self) -> list[str]:
        found = list(self.cell.marks) if self.runs else []
        if any(run.result.get("data_variant") for run in self.runs):
            found.append(DATA_VARIANT)
        return found + (["stale"] if self.stale and not self.runs else [])

    @property
    def empty(self) -> str:
        """What stands where there is no number."""
        if self.cell.problem:
            return self.cell.problem
        if self.runs:
            return NO_NUMBER
        return f"{NOT_RUN} ({len(self.stale)} stale)" if self.stale else NOT_RUN


@dataclass(frozen=True)
class Report:
    """A table and its numbers."""

    table: Table
    filled: tuple[Filled, ...]
    measure: str
    bold: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    def at(self, row: str, column: str) -> Filled:
        return next(each for each in self.filled if (each.cell.row, each.cell.column) == (row, column))

    def showing(self, measure: str) -> Report:
        """The same runs with another of their numbers."""
        return Report(self.table, self.filled, measure, frozenset(_bold(self.table, self.filled, measure)))

    @property
    def runs(self) -> list[Run]:
        """All that the numbers come from, each once."""
        return list({run.name: run for each in self.filled for run in each.runs}.values())

    @property
    def problems(self) -> list[str]:
        return list(dict.fromkeys(problem for each in self.filled for problem in each.problems))


def fill(store: Store, table: Table, measure: str | None = None, keys: KeyCache | None = None) -> Report:
    """Look up every run of a table."""
    measure = measure or table.grid.measure
    filled = tuple(_filled(store, cell, keys) for cell in table.cells)
    return Report(table, filled, measure, frozenset(_bold(table, filled, measure)))


def _filled(store: Store, cell: Cell, keys: KeyCache | None) -> Filled:
    runs: list[Run] = []
    stale: list[Run] = []
    problems: list[str] = []
    for plan in cell.plans:
        content = keys.of(plan) if keys is not None else None
        try:
            run = store.find(plan, content)
        except UserError as error:
            problems.append(str(error))
            continue
        if run is not None:
            (stale if run.stale else runs).append(run)
        if (run is None or run.stale) and (failure := store.failure(store.folder_for(plan, content))):
            problems.append(f"{cell.row}, {cell.column}, seed {plan.seed} failed: {failure}")
    return Filled(cell, tuple(runs), tuple(stale), tuple(problems))


def number(result: Mapping[str, Any], measure: str) -> float | None:
    """A number of a result by its path, such as `accuracy` or `scores.softmax.auroc`."""
    if measure == "own_auroc" and measure not in result:  # of version 0.1, which reported each method's own score
        measure = "auroc"
    found: Any = result
    for word in measure.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def meaning(measure: str) -> str:
    if measure in MEASURES:
        return MEASURES[measure]
    group, name, *rest = measure.split(".")
    where = f" by the score {name}" if group == "scores" else f" of ID test images against {name}"
    where += f" by the score {rest[1]}" if len(rest) == 3 else ""
    return f"{rest[-1].upper()} (%){where}"


# The test


def _bold(table: Table, filled: Sequence[Filled], measure: str) -> list[tuple[str, str]]:
    sign, bold = _direction(measure), []
    if sign == 0:
        return []
    for column in table.columns:
        rows = {each.cell.row: each.values(measure) for each in filled if each.cell.column == column}
        rows = {row: values for row, values in rows.items() if values}
        if len(rows) < 2:
            continue
        best = max(rows, key=lambda row: sign * statistics.fmean(rows[row].values()))
        others = [values for row, values in rows.items() if row != best]
        if all(better(rows[best], values, sign) for values in others):
            bold.append((best, column))
    return bold


def better(one: Mapping[int, float], other: Mapping[int, float], sign: int = 1) -> bool:
    """Whether the first is better than the second over the seeds both have, by the sign-flip test."""
    seeds = one.keys() & other.keys()
    return bool(seeds) and sign_flip([sign * (one[seed] - other[seed]) for seed in seeds]) < LEVEL


@dataclass(frozen=True)
class Difference:
    """A row against another one, over the seeds both have."""

    row: str
    column: str
    measure: str
    mean: float
    error: float | None
    """Standard error of the mean; None for one seed."""
    higher: int
    """On how many seeds the row's number is the higher one."""
    better: int | None
    """On how many it is the better one; None where neither direction is."""
    seeds: int
    p: float | None
    """One-sided, that the row is better; None where neither direction is."""


def differences(report: Report, base: str) -> list[Difference]:
    """Every row against the row `base`, paired by seed."""
    found, sign = [], _direction(report.measure)
    for each in report.filled:
        other = report.at(base, each.cell.column).values(report.measure)
        mine = each.values(report.measure)
        pairs = [mine[seed] - other[seed] for seed in sorted(mine.keys() & other.keys())]
        if each.cell.row == base or not pairs:
            continue
        error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
        p = None if sign == 0 else sign_flip([sign * pair for pair in pairs])
        higher = sum(pair > 0 for pair in pairs)
        better = None if sign == 0 else sum(sign * pair > 0 for pair in pairs)
        where, mean = (each.cell.row, each.cell.column, report.measure), statistics.fmean(pairs)
        found.append(Difference(*where, mean, error, higher, better, len(pairs), p))
    return found


def check_row(table: Table, name: str) -> None:
    """Refuse a row that a table does not have."""
    if name not in table.rows:
        raise UserError(f"--against {name!r}: {table.grid.name} has no such row.{suggest(name, table.rows)}")


def _direction(measure: str) -> int:
    """1 where larger is better, -1 where smaller is, 0 where neither is."""
    if measure in NEITHER:
        return 0
    return -1 if measure in LOWER or measure.endswith(".fpr95") else 1


def sign_flip(differences: Sequence[float]) -> float:
    """Exact one-sided p: the share of all sign patterns of the differences whose sum is at least the observed one.

    Beyond 16 differences by its normal approximation, sum / sqrt(sum of squares).

    >>> sign_flip([1.0, 2.0, 1.5, 0.5, 1.0]), sign_flip([1.0, -1.0])
    (0.03125, 0.75)
    """
    total = sum(differences)
    if len(differences) > 16:
        spread = math.sqrt(sum(each * each for each in differences))
        return 1 - statistics.NormalDist().cdf(total / spread) if spread else 1.0
    sums = [sum(pattern) for pattern in product(*((each, -each) for each in differences))]
    return sum(each >= total - 1e-9 for each in sums) / len(sums)


# What it cost


@dataclass(frozen=True)
class Budget:
    """What a row cost, and what it uses validation images for."""

    row: str
    steps: float
    images: float
    seconds: float
    validation: str


def budgets(report: Report) -> list[Budget]:
    """Of every row that was run: means over its runs. The method is the one that was asked for: a stored plan, which
    may be a stranger's, names no code that is run."""
    from osp.methods.registry import get

    found = []
    for row in report.table.rows:
        cells = [each for each in report.filled if each.cell.row == row and each.runs]
        runs = [run for each in cells for run in each.runs]
        if runs:
            means = [statistics.fmean(number(r.result, key) or 0 for r in runs) for key in COSTS]
            counts = sorted({run.plan.val_per_class for run in runs})
            used = f"{' or '.join(map(str, counts))} per class: {get(cells[0].cell.plans[0].method).validation}"
            found.append(Budget(row, means[0], means[1], means[2], used))
    return found


COSTS = ("steps", "images_seen", "seconds")
