"""The settings are counted in the splits."""

from __future__ import annotations

from osp.bench.cells import Choice
from osp.bench.counts import count, markdown, paper_text
from osp.bench.grid import find_grid


def test_counts_are_those_of_the_split_and_missing_data_are_told() -> None:
    grid = find_grid("table3")
    digits, mnist = count(grid, Choice(datasets=("digits", "mnist"), ratios=(0.6,), fields={"data_dir": "/nowhere"}))
    assert digits.numbers is not None
    classes, others, labeled, validation, pool, ood, test, test_ood = digits.numbers
    assert (classes, others, labeled, validation) == (6, 4, 60, 60)
    assert test + test_ood == 596
    assert abs(ood / pool - 0.6) < 0.01
    assert mnist.numbers is None
    assert "nowhere" in mnist.problem
    assert paper_text(mnist) == "6 / 4 / 60 / 30,000"
    assert "no data" in markdown(grid, [digits, mnist])
