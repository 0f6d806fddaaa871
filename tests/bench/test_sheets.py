"""The settings are counted in the splits."""

from __future__ import annotations

import json

from osp.bench.cells import Choice, expand
from osp.bench.grid import find_grid
from osp.bench.renderers import as_json
from osp.bench.sheets import legend, settings_sheet


def test_counts_are_those_of_the_split_and_missing_data_are_told() -> None:
    choice = Choice(datasets=("digits", "mnist"), ratios=(0.6,), fields={"data_dir": "/nowhere"})
    digits, mnist = settings_sheet(expand(find_grid("table3"), choice)).lines
    classes, others, labeled, validation, pool, ood, test, test_ood = map(int, digits[1:-1])
    assert (classes, others, labeled, validation) == (6, 4, 60, 60)
    assert test + test_ood == 596
    assert abs(ood / pool - 0.6) < 0.01
    assert mnist == ("mnist 0.6", "no data", *[""] * 7, "6 / 4 / 60 / 30,000")


def test_numbers_of_images_are_counted_without_a_ratio_and_told_under_a_table() -> None:
    fields = {"data_dir": "/nowhere", "id_count": 60, "ood_count": 90, "test_ood": ("cifar10",)}
    (digits,) = settings_sheet(expand(find_grid("table3"), Choice(datasets=("digits",), fields=fields))).lines
    assert digits[0] == "digits"
    assert digits[5:7] == ("150", "90")
    fields.pop("test_ood")
    table = expand(find_grid("table1"), Choice("demo", datasets=("digits",), fields=fields, settings=("steps=10",)))
    assert "set for all: id_count=60, ood_count=90, steps=10" in legend(table)
    assert json.loads(as_json([table]))["set"] == ["id_count=60", "ood_count=90", "steps=10"]
