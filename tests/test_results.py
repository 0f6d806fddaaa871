"""docs/reproduction.md and its companions say what the runs in `results/` say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
PAGE = """Text.

    osp bench table4 --datasets digits --seeds 0-7 --scale demo --set labels_per_class=5 \\
        --store results --no-run --against "control with alpha 0"

<!-- table: seeds, accuracy, gain accuracy -->
<!-- end -->
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_results", ROOT / "scripts" / "check_results.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


def test_every_figure_comes_from_the_results(script: ModuleType) -> None:
    assert not list(script.wrong(ROOT / "docs"))


def test_the_page_is_short_and_has_a_table_for_each_of_the_papers() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert len(page.splitlines()) <= 150
    for table in ("table2", "table4", "table5"):
        assert f"    osp bench {table} " in page


def test_a_table_is_written_from_its_command(script: ModuleType) -> None:
    written = script.written(PAGE)
    rows = {line.split(" | ")[0]: line for line in written.splitlines() if line.startswith("| ")}
    report = script.parse(script.COMMAND.findall(PAGE)[0].strip())[2]
    accuracies = {row: report.cell(row, "digits").values("accuracy") for row in report.rows}
    osp, control = accuracies["both with AOM (OSP)"], accuracies["control with alpha 0"]
    mean = sum(osp.values()) / len(osp)
    gain = sum(osp[seed] - control[seed] for seed in range(8)) / 8
    assert f"| 8 | {mean:.1f} ± " in rows["| both with AOM (OSP)"]
    assert f"| {gain:+.1f} ± " in rows["| both with AOM (OSP)"]
    assert rows["| control with alpha 0"].endswith("|  |")


WIDE = """
    osp bench control --methods osp --datasets mnist,cifar100 --seeds 0-7 \\
        --store results --no-run --against "control with alpha 0"

<!-- table: accuracy, seeds, paper -->
<!-- end -->

<!-- table: gain accuracy -->
<!-- end -->
"""


def test_columns_of_a_command_stand_side_by_side_with_the_papers_numbers_and_as_gains(script: ModuleType) -> None:
    report = script.parse(script.COMMAND.findall(WIDE)[0].strip())[2]
    accuracies, gains = (line for line in script.written(WIDE).splitlines() if line.startswith("| osp"))
    for number, (data, published) in enumerate({"mnist": "99.4", "cifar100": "70.9"}.items()):
        own, other = (report.cell(row, data).values("accuracy") for row in ("osp", "control with alpha 0"))
        pairs = [own[seed] - other[seed] for seed in own.keys() & other.keys()]
        accuracy, gain = (line.split(" | ")[1 + number].rstrip(" |") for line in (accuracies, gains))
        assert float(accuracy.split(" ± ")[0]) == pytest.approx(sum(own.values()) / len(own), abs=0.051)
        assert accuracy.endswith(f"({len(own)} seeds, paper {published})")
        assert float(gain.split(" ± ")[0]) == pytest.approx(sum(pairs) / len(pairs), abs=0.051)
        assert len(pairs) >= 3
        assert ", p " in gain


def test_a_changed_figure_is_found(script: ModuleType, tmp_path: Path) -> None:
    page = script.written(PAGE)
    right = next(figure for figure in sorted(script.sources(page)) if figure.startswith("9"))

    def found(first: str, second: str = page, third: str = page) -> list[str]:
        for name, text in zip((*script.WHOLE, *script.TABLES), (first, second, third, page), strict=True):
            (tmp_path / name).write_text(text, "utf-8")
        return list(script.wrong(tmp_path))

    assert not found(f"It has {right} %, see `x=0.123`.", third=f"{page}It has 12.3 %.")
    assert "stands in no table" in found("It has 12.3 %.")[0]
    assert "results/ have" in found(page.replace(f"| {right}", "| 12.3"))[0]
    assert "results/ have" in found("", third=page.replace(f"| {right}", "| 12.3"))[0]
    lines = page.splitlines()
    assert found("\n".join(lines[:-3] + lines[-2:]) + "\n")


@pytest.mark.parametrize(("number", "digits", "text"), [(45.15, 1, "+45.2"), (-0.04, 1, "0.0"), (-0.25, 1, "-0.3")])
def test_numbers_are_rounded_as_by_hand(script: ModuleType, number: float, digits: int, text: str) -> None:
    assert script.signed(number, digits) == text


def test_repeated_runs_are_compared_with_the_stored_ones(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"data": "mnist", "ood_data": None, "labels_per_class": 10, "steps": 1500, "method": "osp"}

    def lines(*accuracies: float, seconds: float) -> SimpleNamespace:
        results = [{"accuracy": each, "auroc": 90.0, "seconds": seconds} for each in accuracies]
        found = {f"run-{number}": {"plan": plan, "result": each} for number, each in enumerate(results)}
        return SimpleNamespace(lines=lambda: found)

    stores = {"results": lines(50.0, 60.0, 70.0, seconds=1.0), "results/repeats": lines(50.0, 58.0, seconds=2.0)}
    monkeypatch.setattr(script, "stored", lambda name="results": stores[name])
    page = script.written("<!-- table: repeats -->\n<!-- end -->\n")
    assert "| mnist, 10 labels per class, 1,500 steps: osp | 2 | 55.0 | 54.0 | 90.0 | 90.0 | 2.0 | 1 |" in page
