"""`osp bench` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.stores import finished, plan_of
from osp.bench.grid import names
from osp.bench.store import Store, export
from osp.cli import app
from osp.errors import UserError

runner = CliRunner()


def test_bench_alone_shows_its_help_which_names_every_table_and_what_may_stand_behind_one() -> None:
    alone, asked = runner.invoke(app, ["bench"]), runner.invoke(app, ["bench", "--help"])
    assert (alone.exit_code, alone.output) == (0, asked.output)
    words = asked.output.replace(",", " ").replace(";", " ").split()
    for word in (*names(), "--jobs", "--against", "--no-run", "--ray", "export"):
        assert word in words, word


@pytest.mark.parametrize("command", ["status supervised.yaml", "export --to {}", "supervised.yaml --no-run --out {}"])
def test_a_line_that_was_cut_off_is_told_whatever_is_asked(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("supervised.yaml").write_text("title: Mine\nmethods: [supervised]\ndatasets: [digits]\n")
    finished(Store(tmp_path / "store"), plan_of())
    export(Store(tmp_path / "store").runs(), Store(tmp_path / "results"))
    with open("results/digits.jsonl", "a", encoding="utf-8") as file:
        file.write('{"format":1,"na')
    done = runner.invoke(app, ["bench", *command.format(tmp_path / "to").split(), "--store", "results"])
    assert done.exit_code == 0, done.output
    assert "digits.jsonl, line 2 was cut off" in done.output


@pytest.mark.parametrize("setting", ["data=digits", "method=osp", "ood_ratio=0.3", "seed=4", "scale=cpu"])
def test_what_names_rows_and_columns_has_an_option_of_its_own(setting: str) -> None:
    done = runner.invoke(app, ["bench", "table1", "--set", setting, "--dry-run"])
    assert isinstance(done.exception, UserError)
    assert f"--set {setting.split('=')[0]}: rows and columns are named after it" in str(done.exception)


@pytest.mark.parametrize(
    "words", ["figure-alpha --set alpha=0.8", "control --methods osp --set alpha=0.5", "table2 --set ood_data=uniform"]
)
def test_what_a_row_or_column_is_about_is_not_set_for_all_runs(words: str) -> None:
    done = runner.invoke(app, ["bench", *words.split(), "--dry-run"])
    assert isinstance(done.exception, UserError)
    assert "cannot be set for all runs: rows or columns of" in str(done.exception)


@pytest.mark.parametrize("words", [["list", "--datasets", "digit"], ["status", "--set", "labels=5"]])
def test_a_mistake_is_told_where_every_table_refuses_it(words: list[str], tmp_path: Path) -> None:
    done = runner.invoke(app, ["bench", *words, "--store", str(tmp_path)])
    assert isinstance(done.exception, UserError)


def test_a_store_that_is_not_there_is_told_where_nothing_is_to_be_run(tmp_path: Path) -> None:
    done = runner.invoke(app, ["bench", "table1", "--store", str(tmp_path / "nowhere"), "--no-run"])
    assert "nothing was run there yet" in done.output
    assert done.exit_code == 0


def test_a_run_that_two_tables_share_is_exported_and_counted_once(tmp_path: Path) -> None:
    finished(Store(tmp_path / "store"), plan_of(steps=400))
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"title: {name}\nmethods: [supervised]\ndatasets: [digits]\n")
    grids = [str(tmp_path / f"{name}.yaml") for name in ("one", "two")]
    places = ["--store", str(tmp_path / "store"), "--to", str(tmp_path / "to")]
    done = runner.invoke(app, ["bench", "export", *grids, "--scale", "demo", *places])
    assert "1 of 1 runs are new" in done.output, done.output
