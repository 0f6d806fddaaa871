"""The settings are counted in the splits."""

from __future__ import annotations

from osp.bench.cells import Choice, expand
from osp.bench.grid import find_grid
from osp.bench.sheets import settings_sheet


def test_counts_are_those_of_the_split_and_missing_data_are_told() -> None:
    choice = Choice(datasets=("digits", "mnist"), ratios=(0.6,), fields={"data_dir": "/nowhere"})
    digits, mnist = settings_sheet(expand(find_grid("table3"), choice)).lines
    classes, others, labeled, validation, pool, ood, test, test_ood = map(int, digits[1:-1])
    assert (classes, others, labeled, validation) == (6, 4, 60, 60)
    assert test + test_ood == 596
    assert abs(ood / pool - 0.6) < 0.01
    assert mnist == ("mnist 0.6", "no data", *[""] * 7, "6 / 4 / 60 / 30,000")
