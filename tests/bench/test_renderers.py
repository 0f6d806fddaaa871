"""Tables with their numbers in every form."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import rich.console

from helpers.stores import finished
from helpers.strangers import payload
from osp.bench.cells import Choice, Table, expand
from osp.bench.grid import Grid, Paper
from osp.bench.numbers import bold, budgets, check_row, differences, fill, sign_flip
from osp.bench.renderers import as_csv, as_json, latex, markdown, page, terminal, write
from osp.bench.sheets import against_sheet, legend, numbers_sheet, sheets_of
from osp.bench.store import Store
from osp.errors import UserError

SEEDS = (0, 1, 2, 3, 4)
CHOICE = Choice(scale="demo", seeds=SEEDS, settings=("steps=10",))


def grid(**fields: object) -> Grid:
    paper = Paper(columns=("0.3", "0.6"), rows={"osp": (99.3, None)})
    values = {"methods": ("supervised", "osp"), "datasets": ("digits",), "ratios": (0.3, 0.6), "paper": paper}
    return Grid(**{"name": "mine", "title": "Mine & <yours>", **values, **fields})


def filled(tmp_path: Path, ahead: tuple[float, ...]) -> Table:
    """Supervised has 90 + seed, OSP more by `ahead`, at ratio 0.3; nothing is run at 0.6."""
    store, table = Store(tmp_path / "store"), expand(grid(), CHOICE)
    for seed, more in enumerate(ahead):
        finished(store, table.cell("supervised", "0.3").plans[seed], accuracy=90.0 + seed)
        finished(store, table.cell("osp", "0.3").plans[seed], accuracy=90.0 + seed + more, data_variant="JPEG")
    return fill(store, table)


def as_markdown(table: Table, base: str | None = None) -> str:
    return markdown(table.grid.title, table.about, sheets_of([table], base))


def test_mean_deviation_paper_and_difference_are_those_of_the_runs(tmp_path: Path) -> None:
    table = filled(tmp_path, (1.0, 1.0, 1.0))
    cell = json.loads(as_json([table]))["cells"][2]
    assert (cell["row"], cell["column"], cell["seeds"]) == ("osp", "0.3", 3)
    assert cell["mean"] == pytest.approx(92.0)
    assert cell["deviation"] == pytest.approx(1.0)
    assert cell["paper"] == 99.3
    assert cell["difference"] == pytest.approx(-7.3)
    assert cell["marks"] == ["smaller budget", "data variant"]
    rows = list(csv.DictReader(io.StringIO(as_csv([table]))))
    assert float(rows[2]["mean"]) == pytest.approx(92.0)
    text = as_markdown(table)
    assert "92.00 ± 1.00 (3) bv<br>paper 99.3, -7.3" in text
    assert "not run" in text
    assert "Mine & &lt;yours>" in text
    assert "Mine \\& <yours>" in latex([table])


def test_a_number_that_a_method_does_not_have_is_not_called_not_run(tmp_path: Path) -> None:
    table = replace(filled(tmp_path, (1.0,)), measure="purity")
    assert table.cell("osp", "0.3").runs
    rows = [line for line in as_markdown(table).splitlines() if line.startswith("| osp")]
    assert [cell.strip() for cell in rows[0].split("|")[1:-1]] == ["osp", "-", "not run"]


def test_the_sign_flip_test_is_the_slow_loop_over_all_patterns() -> None:
    values = [0.3, -0.1, 0.7, 0.2, 0.05]
    sums = [sum(s * v for s, v in zip(signs, values, strict=True)) for signs in product((1, -1), repeat=5)]
    assert sign_flip(values) == sum(each >= sum(values) - 1e-12 for each in sums) / 32
    assert sign_flip([1.0] * 20) < 0.001
    assert sign_flip([0.0] * 20) == 1.0


@pytest.mark.parametrize(
    ("ahead", "better"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0), True),
        ((9.0, 9.0, 9.0, 9.0), False),
        ((1.0, 1.0, 1.0, 1.0, -0.5), False),
        ((0.0,) * 5, False),
    ],
)
def test_the_best_is_bold_only_where_the_test_over_seeds_says_so(
    tmp_path: Path, ahead: tuple[float, ...], better: bool
) -> None:
    table = filled(tmp_path, ahead)
    assert bold(table) == ({("osp", "0.3")} if better else set())
    assert ("**" in as_markdown(table)) == better
    assert "sign-flip test" in legend(table)[0]


def test_stale_and_damaged_results_are_told_and_not_mixed_in(tmp_path: Path) -> None:
    table = filled(tmp_path, (1.0, 1.0))
    folders = [run.folder for run in table.cell("osp", "0.3").runs]
    folders[0].result.write_text("{")
    result = json.loads(folders[1].result.read_text())
    folders[1].write_result({**result, "versions": {**result["versions"], "method": "0"}})
    table = fill(Store(tmp_path / "store"), table)
    cell = table.cell("osp", "0.3")
    assert cell.runs == ()
    assert len(cell.stale) == 1
    assert "not run (1 stale) s" in as_markdown(table)
    assert "is damaged" in table.problems[0]


def test_budgets_say_what_was_spent_and_what_validation_images_are_for(tmp_path: Path) -> None:
    first, second = budgets(filled(tmp_path, (1.0,)))
    assert (first.row, first.steps, first.images, first.seconds) == ("supervised", 10, 320, 2.0)
    assert first.validation == "10 per class: nothing"
    assert "share of ID images" in second.validation


def test_runs_of_several_lengths_have_a_budget_each(tmp_path: Path) -> None:
    table = filled(tmp_path, (1.0, 2.0))
    cell = next(cell for cell in table.cells if cell.runs)
    longer = replace(cell.runs[1], result={**cell.runs[1].result, "steps": 30, "images_seen": 960})
    mixed = replace(table, cells=(replace(cell, runs=(cell.runs[0], longer)),))
    assert [(each.steps, each.images) for each in budgets(mixed)] == [(10, 320), (30, 960)]


def test_every_form_is_written(tmp_path: Path) -> None:
    paths = write([filled(tmp_path, (1.0,))], [], tmp_path / "out")
    assert [path.name for path in paths] == ["mine.md", "mine.csv", "mine.json", "mine.tex", "mine.html"]
    assert all(path.stat().st_size for path in paths)


def test_rows_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Differences of 1, 2, 0 and -1: mean 0.5, error sqrt(5/3) / 2; 6 of 16 patterns of signs reach their sum of 2."""
    table = filled(tmp_path, (1.0, 2.0, 0.0, -1.0))
    (found,) = differences(table, "supervised")
    assert (found.row, found.column, found.measure) == ("osp", "0.3", "accuracy")
    assert found.mean == pytest.approx(0.5)
    assert found.error == pytest.approx((5 / 3) ** 0.5 / 2)
    assert (found.higher, found.better, found.seeds) == (2, 2, 4)
    assert found.p == pytest.approx(6 / 16)
    assert against_sheet([table], "supervised").lines == [
        ("osp, 0.3", "accuracy", "+0.50 ± 0.65", "better on 2 of 4", f"{found.p:.4f}")
    ]
    assert "| osp, 0.3 | accuracy | +0.50 ± 0.65 | better on 2 of 4 |" in as_markdown(table, "supervised")
    assert "Against" not in as_markdown(table)
    (other,) = differences(table, "osp")
    assert other.mean == pytest.approx(-0.5)


def test_differences_to_a_row_stand_in_every_form(tmp_path: Path) -> None:
    table = filled(tmp_path, (1.0, 2.0, 0.0, -1.0))
    (found,) = differences(table, "supervised")
    said = json.loads(as_json([table], "supervised"))["against"]
    assert (said["row"], said["differences"]) == ("supervised", [vars(found)])
    assert json.loads(as_json([table]))["against"] is None
    rows = {(row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(as_csv([table], "supervised")))}
    mine = rows["osp", "0.3"]
    assert (mine["against"], float(mine["against_mean"]), mine["against_better"]) == ("supervised", found.mean, "2")
    assert (float(mine["against_p"]), mine["against_seeds"]) == (found.p, "4")
    assert rows["supervised", "0.3"]["against_mean"] == rows["osp", "0.6"]["against_mean"] == ""
    assert "against" not in as_csv([table])
    assert "osp, 0.3 & accuracy & +0.50 $\\pm$ 0.65 & better on 2 of 4 & 0.3750 \\\\" in latex([table], "supervised")
    assert latex([table]).count("tabular}") == 2
    shown = page("Mine", "", sheets_of([table], "supervised"))
    assert "Against supervised, paired by seed" in shown
    assert "better on 2 of 4" in shown


def test_names_are_never_read_as_formulas_links_or_commands(tmp_path: Path) -> None:
    names = ["=1+1", "+1", "-1+1", "@x", "\t=1", " =1", "\r=1", "＝1", "[x](javascript:1)", "\x1b]0;x\x07"]
    rows = [{"name": name, "method": "supervised"} for name in names]
    table = fill(Store(tmp_path / "store"), expand(grid(methods=(), rows=rows, ratios=(0.3,)), CHOICE))
    cells = list(csv.reader(io.StringIO(as_csv([table]))))[1:]
    assert [row[0][0] for row in cells[:5]] == ["'"] * 4 + ["\\"]  # a tab is written out
    assert not [cell for row in cells for cell in row if cell.lstrip("'").strip()[:1] in ("=", "@") and cell[0] != "'"]
    assert not [cell for row in cells for cell in row if "\x1b" in cell]
    assert {row[9] for row in cells} == {""}  # marks: nothing is nothing
    assert "\n| \\[x](javascript:1) |" in as_markdown(table)
    assert "\n{[}x](javascript:1) &" in latex([table])


def test_the_measure_stands_under_the_title_of_a_terminal_table(tmp_path: Path) -> None:
    shown = io.StringIO()
    table = replace(filled(tmp_path, (1.0,)), measure="val_accuracy")
    rich.console.Console(file=shown, width=120).print(terminal(table.grid.title, numbers_sheet(table)))
    title, measure = [line.strip() for line in shown.getvalue().splitlines() if line.strip()][:2]
    assert (title, measure) == ("Mine & <yours>", "validation accuracy (%), for choosing")


def test_what_a_table_is_about_says_which_data_sets_it_shows() -> None:
    about = {"about": "The paper has MNIST.", "datasets": ("mnist", "digits")}
    assert expand(grid(**about), CHOICE).about == "The paper has MNIST."
    assert expand(grid(**about), replace(CHOICE, datasets=("digits",))).about == "The paper has MNIST."
    other = expand(grid(about="The paper has MNIST.", datasets=("mnist",)), replace(CHOICE, datasets=("digits",)))
    assert other.about == "The paper has MNIST. Here: digits."
    assert "The paper has MNIST. Here: digits." in as_markdown(fill(Store(Path("nowhere")), other))


def test_smaller_is_better_for_some_numbers_and_neither_for_others(tmp_path: Path) -> None:
    store, table = Store(tmp_path / "store"), expand(grid(), CHOICE)
    for seed in range(3):
        finished(store, table.cell("supervised", "0.3").plans[seed], fpr95=50.0, angle=60.0)
        finished(store, table.cell("osp", "0.3").plans[seed], fpr95=40.0, angle=70.0)
    (fpr,), (angle,) = (
        differences(replace(fill(store, table), measure=key), "supervised") for key in ("fpr95", "angle")
    )
    assert (fpr.p, fpr.higher, fpr.better) == (1 / 8, 0, 3)
    assert (angle.p, angle.higher, angle.better) == (None, 3, None)
    (line,) = against_sheet([replace(fill(store, table), measure="fpr95")], "supervised").lines
    assert line[3] == "better on 3 of 3"
    (line,) = against_sheet([replace(fill(store, table), measure="angle")], "supervised").lines
    assert line[3] == "higher on 3 of 3"


def test_an_unknown_row_is_refused_with_a_near_miss() -> None:
    with pytest.raises(UserError, match=r"--against 'supervized': mine has no such row. Did you mean 'supervised'\?"):
        check_row(expand(grid(), CHOICE), "supervized")


def test_a_note_is_shown_where_it_applies(tmp_path: Path) -> None:
    notes = [
        "always",
        {"text": "of uda", "where": ["uda"]},
        {"text": "of osp on digits", "where": ["osp", "digits"]},
        {"text": "of the paper", "published": True},
    ]
    mine = grid(methods=("supervised", "uda", "osp"), notes=notes)
    everything = fill(Store(tmp_path / "store"), expand(mine, CHOICE))
    assert legend(everything)[-4:] == ["always", "of uda", "of osp on digits", "of the paper"]
    assert "of the paper" not in legend(replace(everything, measure="auroc"))
    few = fill(Store(tmp_path / "store"), expand(mine, replace(CHOICE, methods=("supervised",))))
    assert legend(few)[-1] == "always"


def test_showing_a_store_runs_no_method_file_that_a_stored_plan_names(tmp_path: Path) -> None:
    ran = payload(tmp_path / "payload.py")
    table = filled(tmp_path, (1.0,))
    hostile = {
        run.name: run.plan.changed(method=str(tmp_path / "payload.py"), method_content=None) for run in table.runs
    }
    for run in table.runs:
        run.folder.plan.write_text(hostile[run.name].dump())
    shown = fill(Store(tmp_path / "store"), table)
    assert all("its plan is another" in problem for problem in shown.problems)
    assert (shown.runs, len(shown.problems), len(write([shown], [], tmp_path / "out"))) == ([], len(hostile), 5)
    cells = [
        replace(cell, runs=tuple(replace(run, decided=hostile[run.name]) for run in cell.runs)) for cell in table.cells
    ]
    assert budgets(replace(table, cells=tuple(cells)))[0].validation == "10 per class: nothing"
    assert not ran.exists()
