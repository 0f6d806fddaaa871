"""The store finds a run by what it was, never mixes versions, and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.stores import finished, plan_of
from helpers.strangers import payload
from osp.bench.jobs import jobs_for
from osp.bench.store import Store, export
from osp.errors import UserError
from osp.recipe import Plan
from osp.verify import verify


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def newer(plan: Plan, kind: str) -> Plan:
    return plan.changed(versions={**plan.versions, kind: "99"})


def test_reading_a_store_creates_nothing(store: Store) -> None:
    assert store.find(plan_of()) is None
    assert store.status(plan_of()) == "missing"
    assert not store.root.exists()


def test_a_run_is_found_from_another_folder_device_and_number_of_threads(store: Store) -> None:
    finished(store, plan_of())
    moved = plan_of(data_dir="/elsewhere", device="cpu", threads=3, log_every=7)
    found = store.find(moved)
    assert found is not None
    assert found.result["accuracy"] == 90.0
    assert store.status(moved) == "finished"


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 11}, {"ood_ratio": 0.3}, {"options": {"lr": 0.01}}])
def test_a_run_is_not_found_where_anything_that_counts_differs(store: Store, change: dict[str, object]) -> None:
    finished(store, plan_of())
    assert store.status(plan_of(**change)) == "missing"


def test_a_run_of_another_kind_of_machine_is_as_good_unless_the_group_was_asked_for(store: Store) -> None:
    finished(store, plan_of().changed(group=0))
    assert store.status(plan_of()) == "finished"
    assert store.status(plan_of(group=128)) == "missing"


@pytest.mark.parametrize("kind", ["harness", "method"])
def test_a_result_of_another_version_is_stale_and_stays_beside_the_new_one(store: Store, kind: str) -> None:
    plan = plan_of()
    old = finished(store, plan)
    today = newer(plan, kind)
    assert store.status(today) == "stale"
    found = store.find(today)
    assert found is not None
    assert found.stale == f"{kind} 1, today 99"
    new = finished(store, today, accuracy=95.0)
    assert old != new
    assert old.exists()
    assert (store.status(today), store.status(plan)) == ("finished", "finished")


def test_another_version_of_osp_or_torch_is_not_stale(store: Store) -> None:
    plan = plan_of()
    finished(store, plan)
    assert store.status(newer(newer(plan, "osp"), "torch")) == "finished"


def test_runs_on_other_images_have_a_folder_of_their_own(store: Store) -> None:
    plan = plan_of()
    finished(store, plan)
    assert store.status(plan, {"0 digits": "k"}) == "finished"
    assert store.status(plan, {"0 digits": "other"}) == "stale"
    assert store.folder_for(plan, {"0 digits": "other"}).path != store.folder_for(plan).path


def test_a_result_without_a_wanted_test_is_not_finished(store: Store) -> None:
    finished(store, plan_of())
    wanted = plan_of(test_ood="uniform")
    assert store.status(wanted) == "interrupted"
    found = store.find(wanted)
    assert found is not None
    assert found.lacks(wanted) == ["uniform"]


def test_a_claim_is_seen_by_other_processes_and_ends_with_its_holder(store: Store) -> None:
    plan = plan_of()
    store.create()
    name = store.folder_for(plan).path.name
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom osp.bench.store import Store\n"
        f"with Store(Path({str(store.root)!r})).claim({name!r}, 'busy'):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert store.status(plan) == "running"
        with pytest.raises(UserError, match="busy"), store.claim(name, "busy"):
            pass
    finally:
        holder.kill()
        holder.wait()
    assert store.status(plan) == "missing"


def test_a_failure_is_told_with_its_reason(store: Store) -> None:
    plan = plan_of()
    store.create()
    store.note(store.folder_for(plan), plan, "failed", {}, "no space left")
    assert store.status(plan) == "failed"
    assert store.failure(store.folder_for(plan)) == "no space left"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"accuracy": "high"}', '{"accuracy": true}'])
def test_a_damaged_result_is_a_sentence_that_names_the_file(store: Store, content: str) -> None:
    plan = plan_of()
    path = finished(store, plan)
    (path / "result.json").write_text(content)
    assert store.status(plan) == "damaged"
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        store.find(plan)
    assert list(store.runs()) == []


def test_a_store_of_another_form_and_a_folder_that_is_none_are_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": 7}')
    with pytest.raises(UserError, match="has form 7, this version of osp knows form 1"):
        Store(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is not empty and is no store"):
        Store(tmp_path / "home")
    with pytest.raises(UserError, match="is a file"):
        Store(tmp_path / "store.json")


def test_a_store_that_another_process_is_just_making_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / ".store.json.x.partial").touch()
    (tmp_path / ".claims").mkdir()
    assert Store(tmp_path).status(plan_of()) == "missing"


def test_an_export_is_a_store_without_weights_and_without_places(store: Store, tmp_path: Path) -> None:
    path = finished(store, plan_of(data_dir="/home/somebody/data"))
    (path / "model.safetensors").write_bytes(b"0" * 1000)
    lines = [{"step": 1, "kind": "train", "loss": 1.0}, {"step": 5, "kind": "eval", "val_accuracy": 50.0}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    small = Store(tmp_path / "results")
    assert export(store.runs(), small) == 1
    assert export(store.runs(), small) == 0
    assert small.status(plan_of()) == "finished"
    found = small.find(plan_of())
    assert found is not None
    assert found.folder.read_metrics() == lines[1:]
    assert {path.name for path in small.root.iterdir()} == {"digits.jsonl", ".lines.lock"}
    assert "somebody" not in (small.root / "digits.jsonl").read_text()
    (original,) = store.runs()
    plain = original.plan.changed(data_dir=None, recipe=found.plan.recipe)
    assert (found.plan, found.result, found.keys, found.machine) == (plain, original.result, original.keys, {})


def test_an_exported_run_with_files_of_code_keeps_their_names_and_its_identity(store: Store, tmp_path: Path) -> None:
    home = tmp_path / "somebody"
    home.mkdir()
    payload(home / "mine.py")
    (home / "net.py").write_text("from osp.nets import NetworkSpec\nNETWORK = NetworkSpec('t', print, '', '')\n")
    plan = plan_of(method=str(home / "mine.py"), network=str(home / "net.py"))
    finished(store, plan)
    small = Store(tmp_path / "results")
    assert export(store.runs(), small) == 1
    assert "somebody" not in (small.root / "digits.jsonl").read_text()
    assert small.status(plan) == "finished"
    (found,) = small.runs()
    assert (found.plan.method, found.plan.network, found.plan.identity()) == ("./mine.py", "./net.py", plan.identity())
    assert found.plan.recipe["method"] == "./mine.py"


def test_a_line_under_the_name_of_another_run_is_not_shown_as_that_run(store: Store, tmp_path: Path) -> None:
    finished(store, plan_of())
    export(store.runs(), Store(tmp_path / "results"))
    path = tmp_path / "results" / "digits.jsonl"
    other = plan_of(seed=1)
    path.write_text(path.read_text().replace(store.folder_for(plan_of()).path.name, store.folder_for(other).path.name))
    small = Store(tmp_path / "results")
    with pytest.raises(UserError, match="its plan is another"):
        small.find(other)
    assert small.status(other) == "damaged"


def test_an_exported_run_is_written_again_once_it_was_tested_on_more(store: Store, tmp_path: Path) -> None:
    path, small = finished(store, plan_of()), Store(tmp_path / "results")
    assert export(store.runs(), small) == 1
    wanted = plan_of(test_ood="uniform")
    assert small.status(wanted) == "missing"
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps({**result, "other_ood": {"uniform": {"auroc": 50.0}}}))
    assert export(store.runs(), small) == 1
    assert small.status(wanted) == "finished"
    (path / "result.json").write_text(json.dumps({**result, "other_ood": {"gaussian": {"auroc": 60.0}}}))
    assert export(store.runs(), small) == 1
    (run,) = small.runs()
    assert run.result["other_ood"] == {"uniform": {"auroc": 50.0}, "gaussian": {"auroc": 60.0}}
    again = {**result, "scores": {"softmax": {"auroc": 1.0}}, "other_ood": {"lsun": {"auroc": 70.0}}}
    (path / "result.json").write_text(json.dumps(again))  # trained again: numbers of two models are not mixed
    assert export(store.runs(), small) == 0


def test_a_run_that_is_a_line_is_trained_again_for_all_sets_that_it_was_tested_on(store: Store, tmp_path: Path) -> None:
    path, small = finished(store, plan_of()), Store(tmp_path / "results")
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps({**result, "other_ood": {"uniform": {"auroc": 50.0}}}))
    export(store.runs(), small)
    (job,) = jobs_for(small, [plan_of(test_ood="gaussian")])
    assert set(job.plan.test_ood) == set(job.plan.recipe["test_ood"]) == {"uniform", "gaussian"}
    (enough,) = jobs_for(small, [plan_of(test_ood="uniform")])
    assert set(enough.plan.test_ood) == {"uniform"}


def test_a_run_folder_counts_before_a_line_once_it_is_finished(store: Store, tmp_path: Path) -> None:
    path, small = finished(store, plan_of()), Store(tmp_path / "results")
    export(store.runs(), small)
    (small.root / path.name).mkdir()
    (small.root / path.name / "plan.yaml").write_text("half")
    assert small.status(plan_of()) == "finished"
    (small.root / path.name / "plan.yaml").unlink()
    (small.root / path.name).rmdir()
    finished(small, plan_of(), accuracy=95.0)
    assert [run.result["accuracy"] for run in small.runs()] == [95.0]
    assert (small.root / "store.json").exists()


def test_lines_of_other_versions_and_other_images_are_stale(store: Store, tmp_path: Path) -> None:
    plan, small = plan_of(), Store(tmp_path / "results")
    finished(store, newer(plan, "method"))
    export(store.runs(), small)
    found = small.find(plan)
    assert found is not None
    assert found.stale == "method 99, today 1"
    finished(store, plan)
    export(store.runs(), small)
    assert small.status(plan, {"0 digits": "k"}) == "finished"
    assert small.status(plan, {"0 digits": "other"}) == "stale"


def test_a_map_drawn_after_an_export_goes_along_with_the_next_one(store: Store, tmp_path: Path) -> None:
    path, small = finished(store, plan_of()), Store(tmp_path / "results")
    assert export(store.runs(), small) == 1
    (path / "map.json").write_text('{"places": [[0.25, 1.0]], "classes": [-1]}')
    assert export(store.runs(), small) == 0
    found = small.find(plan_of())
    assert found is not None
    assert found.folder.read_map() == {"places": [[0.25, 1.0]], "classes": [-1]}
    assert (small.root / f"map-{path.name}.json").exists()


@pytest.mark.parametrize(
    "noted",
    [
        "{",
        "[]",
        '{"status": "failed", "failure": ["a"]}',
        '{"status": ["failed"], "failure": "a"}',
        '{"status": "failed", "failure": "a", "machine": 3}',
        '{"status": "failed", "failure": "a", "machine": {"cores": [2]}}',
        '{"status": "failed", "failure": "a", "versions": {"osp": 1}}',
        '{"failure": "a"}',
    ],
)
def test_a_note_that_does_not_have_its_form_counts_as_none_and_verify_tells(noted: str, store: Store) -> None:
    plan = plan_of()
    folder = finished(store, plan)
    store.note(store.folder_for(plan), plan, "failed", {"cores": 2}, "a")
    assert store.failure(store.folder_for(plan)) == "a"
    (store.folder_for(plan).path / "run.json").write_text(noted)
    assert store.failure(store.folder_for(plan)) == ""
    assert [run.machine for run in store.runs()] == [{}]
    (verdict, *_) = verify(store.root)
    assert [problem for problem in verdict.problems if "run.json" in problem], folder
