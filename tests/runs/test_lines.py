"""Runs as lines: what was written is read, what is no line is told and passed over, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.stores import plan_of
from osp.bench.store import Store, plan_of_line
from osp.errors import UserError
from osp.methods.registry import options_before
from osp.recipe import Plan, Recipe, make_plan
from osp.runs import lines
from osp.runs.lines import LOCK, add_lines, holds_lines, read_lines

RESULTS = Path(__file__).parents[2] / "results"


def line(name: str = "digits-a", data: str = "digits", **more: Any) -> dict[str, Any]:
    """A run; its plan is any."""
    return {
        "format": 1,
        "name": name,
        "identity": "i",
        "versions": {"osp": "1"},
        "plan": {"data": data},
        "result": {"accuracy": 90.0, "class_names": ["[" * 99, "ä\u2028"]},
        "metrics": [{"step": 1, "kind": "eval", "val_accuracy": 50.0}, {"step": "no"}],
        **more,
    }


def names(path: Path) -> list[str]:
    return list(read_lines(path).runs)


def test_runs_are_read_as_they_were_written_each_in_the_file_of_its_data_set(tmp_path: Path) -> None:
    add_lines(tmp_path, [line("digits-a"), line("mnist-a", "mnist"), line("digits-b")])
    add_lines(tmp_path, [line("digits-c")])
    assert names(tmp_path / "digits.jsonl") == ["digits-a", "digits-b", "digits-c"]
    assert read_lines(tmp_path / "mnist.jsonl").runs["mnist-a"] == line("mnist-a", "mnist")
    assert (tmp_path / "digits.jsonl").read_bytes().count(b"\n") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"digits.jsonl", "mnist.jsonl", LOCK}
    assert holds_lines(tmp_path)


def test_the_same_run_twice_is_one_and_the_last_counts(tmp_path: Path) -> None:
    add_lines(tmp_path, [line("a"), line("b")])
    add_lines(tmp_path, [line("a", result={"accuracy": 95.0})])
    path = tmp_path / "digits.jsonl"
    assert path.read_bytes().count(b"\n") == 2
    path.write_bytes(path.read_bytes() + json.dumps(line("b", result={"accuracy": 96.0})).encode() + b"\n")  # a union
    assert {name: run["result"]["accuracy"] for name, run in read_lines(path).runs.items()} == {"a": 95.0, "b": 96.0}


def test_an_end_that_was_cut_off_is_passed_over_and_goes_with_the_next_addition(tmp_path: Path) -> None:
    path = tmp_path / "digits.jsonl"
    add_lines(tmp_path, [line("a"), line("b")])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first + 1, first + 40, len(whole) - 2):
        path.write_bytes(whole[:cut])
        found = read_lines(path)
        assert list(found.runs) == ["a"]
        assert "line 2 was cut off" in found.torn
        add_lines(tmp_path, [line("c")])
        assert names(path) == ["a", "c"]
        assert not read_lines(path).torn
    path.write_bytes(whole[:-1])  # only the end of the line is missing: the run is there
    add_lines(tmp_path, [line("c")])
    assert names(path) == ["a", "b", "c"]


DEEP = b'{"format":1,"name":"a","identity":"i","versions":{},"plan":{},"result":{"x":' + b"[" * 300 + b"]" * 300 + b"}}"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<<<<<<< HEAD", "not valid JSON"),
        (b"[]", "it holds no fields"),
        (b"\xff\xfe", "it is not text"),
        (DEEP, "it is nested too deeply"),
        (json.dumps(line(result={"accuracy": "high"})).encode(), "accuracy is 'high'"),
        (json.dumps(line(result={"accuracy": float("nan")})).encode(), "accuracy is nan"),
        (json.dumps(line(result={"accuracy": 1.7e308})).encode(), "accuracy is 1.7e"),
        (json.dumps(line(name="../../etc/x")).encode(), "name is"),
        (json.dumps(line(name=".claims")).encode(), "name is"),
        (json.dumps(line(format=2)).encode(), "format is 2"),
        (json.dumps(line(machine={"cores": [2]})).encode(), "machine.cores"),
    ],
)
def test_what_is_no_line_is_told_passed_over_and_kept(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "digits.jsonl"
    add_lines(tmp_path, [line("a"), line("b")])
    before, after = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(before + content + b"\n\n" + after)
    found = read_lines(path)
    assert list(found.runs) == ["a", "b"]
    (problem,) = found.problems
    assert f"{path}, line 2 is passed over: " in problem
    assert told in problem
    add_lines(tmp_path, [line("c")])
    assert names(path) == ["a", "b", "c"]
    assert content in path.read_bytes()


def _link(path: Path, elsewhere: Path) -> None:
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(elsewhere)


def _pipe(path: Path, elsewhere: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _long(path: Path, elsewhere: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(lines.MOST_BYTES + 1)


@pytest.mark.parametrize("make", [_link, _pipe, _long])
def test_a_link_a_pipe_and_an_endless_file_are_neither_read_nor_replaced(
    make: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    root = tmp_path / "results"
    add_lines(root, [line("a")])
    make(root / "digits.jsonl", tmp_path / "elsewhere")
    kept = (root / "digits.jsonl").lstat()
    for act in (lambda: read_lines(root / "digits.jsonl"), lambda: add_lines(root, [line("b")])):
        with pytest.raises(UserError, match=r"digits\.jsonl cannot be read: it is "):
            act()
    assert os.path.samestat((root / "digits.jsonl").lstat(), kept)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "letter"
    victim.write_text("dear")
    root = tmp_path / "results"
    root.mkdir()
    (root / LOCK).symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        add_lines(root, [line("a")])
    assert victim.read_text() == "dear"


def test_what_would_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written as a line"):
        add_lines(tmp_path, [line("a"), line("../x")])
    assert not list(tmp_path.glob("*.jsonl"))
    add_lines(tmp_path, [line("a", "../../x y")])
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["______x_y.jsonl"]


def test_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom osp.runs.lines import add_lines\n"
        "line = {'format': 1, 'identity': 'i', 'versions': {}}\n"
        "line |= {'plan': {'data': 'digits'}, 'result': {'accuracy': None}}\n"
        "for n in range(10):\n    add_lines(Path(sys.argv[1]), [{**line, 'name': f'{sys.argv[2]}-{n}'}])"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), each]) for each in "ab"]
    assert [each.wait() for each in started] == [0, 0]
    assert len(names(tmp_path / "digits.jsonl")) == 20


def test_lines_of_two_branches_are_put_together_by_git(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / ".gitattributes").write_text((RESULTS.parent / ".gitattributes").read_text())
    results = tmp_path / "results"
    add_lines(results, [line("a")])
    git("add", ".")
    git("commit", "-m", "a")
    git("switch", "-c", "other")
    add_lines(results, [line("b")])
    git("commit", "-am", "b")
    git("switch", "main")
    add_lines(results, [line("c")])
    git("commit", "-am", "c")
    git("merge", "other")
    assert sorted(names(results / "digits.jsonl")) == ["a", "b", "c"]
    assert not read_lines(results / "digits.jsonl").problems


def test_a_run_of_a_line_reads_like_a_folder(tmp_path: Path) -> None:
    run = lines.LineRun(tmp_path, line("a"))
    assert run.begun()
    assert run.read_metrics() == [{"step": 1, "kind": "eval", "val_accuracy": 50.0}]
    assert run.read_map() is None
    (tmp_path / "map-a.json").write_text('{"places": [[0.25, 1.0]], "classes": [-1]}')
    assert run.read_map() == {"places": [[0.25, 1.0]], "classes": [-1]}


def test_every_run_in_the_repository_is_found_by_its_plan_and_by_what_it_says() -> None:
    """Options of a stored plan, asked for by name today, make the same identity. Where one of them is gone, its last
    default will do (`Options.removed`); a run with another value, or with one that is no longer allowed, is found by
    its plan alone."""
    store = Store(RESULTS)
    lost, gone = [], []
    planned: dict[str, Plan | None] = {}
    for name, kept in store.lines().items():
        plan = plan_of_line(kept)
        found = store.find(plan)
        if plan.identity() != kept["identity"] or found is None or (found.name, found.stale) != (name, ""):
            lost.append(name)
        fields = {key: value for key, value in plan.model_dump(mode="json").items() if key in Recipe.model_fields}
        fields |= {"options": {**options_before(plan.method), **plan.options}, "seed": 0}  # nothing depends on the seed
        text = json.dumps(fields, sort_keys=True)
        if text not in planned:
            try:
                planned[text] = make_plan(Recipe(**fields))
            except UserError:
                planned[text] = None
        today = planned[text]
        if today is None:
            gone.append(name)
        elif today.changed(seed=plan.seed).identity() != plan.identity():
            lost.append(name)
    assert store.problems == []
    assert lost == []
    assert len(store.lines()) >= 756
    assert len(gone) <= 56  # `center`, `surest` and their like, tried and taken away


def test_a_store_of_lines_is_read_again_once_its_file_is_another(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    assert store.names() == []
    add_lines(store.root, [line("digits-a")])
    assert store.names() == ["digits-a"]
    add_lines(store.root, [line("digits-b")])
    assert store.names() == ["digits-a", "digits-b"]
    assert store.status(plan_of()) == "missing"
