"""What a store has of a table, what the numbers cost, how rows differ, and which numbers are bold.

The best of a column is bold only where a one-sided sign-flip test over the seeds both have finds it better than
every other row (p < 0.05, which takes five seeds at least).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from osp.bench.cells import Cell, Table
from osp.bench.grid import LOWER, MEASURES, NEITHER
from osp.bench.jobs import KeyCache
from osp.bench.store import Store
from osp.errors import UserError, suggest
from osp.runs.run import Run

LEVEL = 0.05
TEST = (
    "bold: better than every other row by a one-sided sign-flip test (exact up to 16 seeds) over the seeds both have, "
    "p < 0.05"
)


def fill(store: Store, table: Table, keys: KeyCache | None = None) -> Table:
    """The table with every run of it that the store has."""
    return replace(table, cells=tuple(_filled(store, cell, keys) for cell in table.cells))


def _filled(store: Store, cell: Cell, keys: KeyCache | None) -> Cell:
    runs: list[Run] = []
    stale: list[Run] = []
    failures: list[str] = []
    for plan in cell.plans:
        content = keys.of(plan) if keys is not None else None
        try:
            run = store.find(plan, content)
        except UserError as error:
            failures.append(str(error))
            continue
        if run is not None:
            (stale if run.stale else runs).append(run)
        if (run is None or run.stale) and (failure := store.failure(store.folder_for(plan, content))):
            failures.append(f"{cell.row}, {cell.column}, seed {plan.seed} failed: {failure}")
    return replace(cell, runs=tuple(runs), stale=tuple(stale), failures=tuple(failures))


def meaning(measure: str) -> str:
    if measure in MEASURES:
        return MEASURES[measure]
    group, name, *rest = measure.split(".")
    where = f" by the score {name}" if group == "scores" else f" of ID test images against {name}"
    where += f" by the score {rest[1]}" if len(rest) == 3 else ""
    return f"{rest[-1].upper()} (%){where}"


# The test


def bold(table: Table) -> set[tuple[str, str]]:
    """Row and column of every number that is better than all others of its column."""
    found, sign = set(), _direction(table.measure)
    for column in table.columns if sign else ():
        values = {cell.row: cell.values(table.measure) for cell in table.cells if cell.column == column}
        values = {row: by_seed for row, by_seed in values.items() if by_seed}
        if len(values) < 2:
            continue
        best = max(values, key=lambda row: sign * statistics.fmean(values[row].values()))
        pairs = [_paired(values[best], other) for row, other in values.items() if row != best]
        if all(pair and sign_flip([sign * each for each in pair]) < LEVEL for pair in pairs):
            found.add((best, column))
    return found


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Differences on the seeds that both have."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


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


def differences(table: Table, base: str) -> list[Difference]:
    """Every row against the row `base`, paired by seed."""
    found, sign = [], _direction(table.measure)
    for cell in table.cells:
        other = table.cell(base, cell.column)
        pairs = _paired(cell.values(table.measure), other.values(table.measure))
        if cell.row == base or not pairs:
            continue
        error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
        p = None if sign == 0 else sign_flip([sign * pair for pair in pairs])
        higher = sum(pair > 0 for pair in pairs)
        better = None if sign == 0 else sum(sign * pair > 0 for pair in pairs)
        where, mean = (cell.row, cell.column, table.measure), statistics.fmean(pairs)
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
    patterns = np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences)) & 1
    return float(((1 - 2 * patterns) @ differences >= total - 1e-9).mean())


# What it cost


@dataclass(frozen=True)
class Budget:
    """What a row cost with this number of steps, and what it uses validation images for."""

    row: str
    steps: float
    images: float
    seconds: float
    validation: str


def budgets(table: Table) -> list[Budget]:
    """Of every row that was run, means over its runs of equally many steps.

    The method is the one that was asked for: a stored plan, which may be a stranger's, names no code that is run.
    """
    from osp.methods.registry import get

    found = []
    for row in table.rows:
        cells = [cell for cell in table.cells if cell.row == row and cell.runs]
        every = [run for cell in cells for run in cell.runs]
        for steps in sorted({run.number("steps") or 0 for run in every}):
            runs = [run for run in every if (run.number("steps") or 0) == steps]
            images, seconds = (
                statistics.fmean(run.number(key) or 0 for run in runs) for key in ("images_seen", "seconds")
            )
            counts = sorted({run.plan.val_per_class for run in runs})
            used = f"{' or '.join(map(str, counts))} per class: {get(cells[0].plans[0].method).validation}"
            found.append(Budget(row, steps, images, seconds, used))
    return found
