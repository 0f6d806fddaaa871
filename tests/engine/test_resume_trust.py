"""A run folder from a stranger goes on only with code that the user names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_runs import result, small

from helpers.runs import Stopper, run
from helpers.strangers import payload
from osp import Recipe, UserError
from osp.engine.signals import Interrupted
from osp.recipe import Plan
from osp.runs.folder import RunFolder


def stopped(recipe: Recipe, out: Path) -> RunFolder:
    with pytest.raises(Interrupted):
        run(recipe, out, display=Stopper(4))
    return RunFolder(out)


def test_a_plan_that_names_a_method_file_is_resumed_only_where_the_user_names_it_too(tmp_path: Path) -> None:
    folder = stopped(small(), tmp_path / "run")
    file = tmp_path / "run" / "payload.py"
    ran = payload(file)
    plan = Plan.read(folder.plan)
    for content in (None, "0" * 24):
        folder.plan.write_text(plan.changed(method=str(file), method_content=content).dump())
        for recipe in (Recipe(), Recipe(method=str(file)), Recipe(method="supervised")):
            with pytest.raises(UserError, match=r"payload\.py"):
                run(recipe, folder.path, resume=True)
    assert not ran.exists()


def test_a_run_by_a_method_file_goes_on_with_a_file_of_equal_content_alone(tmp_path: Path) -> None:
    for name in ("mine.py", "other.py", "same.py"):
        payload(tmp_path / name)
    (tmp_path / "same.py").write_bytes((tmp_path / "mine.py").read_bytes())
    folder = stopped(small(str(tmp_path / "mine.py"), options={"mu": 1}), tmp_path / "run")
    (tmp_path / "mine.ran").unlink()
    for recipe in (Recipe(), Recipe(method=str(tmp_path / "other.py"))):
        with pytest.raises(UserError, match=r"mine\.py"):
            run(recipe, folder.path, resume=True)
    assert not (tmp_path / "mine.ran").exists()
    assert not (tmp_path / "other.ran").exists()
    run(Recipe(method=str(tmp_path / "same.py")), folder.path, resume=True)
    assert result(folder.path)["accuracy"] is not None


def test_another_method_by_name_is_a_difference(tmp_path: Path) -> None:
    folder = stopped(small(), tmp_path / "run")
    with pytest.raises(UserError, match="method is 'supervised' there, 'fixmatch' here"):
        run(Recipe(method="fixmatch"), folder.path, resume=True)


def test_a_result_without_its_accuracy_and_a_plan_with_too_many_threads_are_damaged(tmp_path: Path) -> None:
    folder = stopped(small(), tmp_path / "run")
    plan = folder.plan.read_text("utf-8")
    for threads in (1025, 2**64):
        folder.plan.write_text(re.sub(r"threads: \S+", f"threads: {threads}", plan), "utf-8")
        with pytest.raises(UserError, match="threads"):
            run(Recipe(), folder.path, resume=True)
    folder.plan.write_text(plan, "utf-8")
    folder.result.write_text('{"steps": 8}', "utf-8")
    with pytest.raises(UserError, match="accuracy is missing"):
        run(Recipe(), folder.path, resume=True)
