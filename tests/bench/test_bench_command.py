"""`osp bench` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.stores import finished, plan_of
from osp.bench.grid import names
from osp.bench.store import Store, export
from osp.cli import app

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
