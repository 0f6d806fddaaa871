"""`osp verify` finds what is wrong with a folder, and nothing wrong with a good one."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from helpers.bombs import pipe
from helpers.runs import run
from helpers.stores import finished as finished_run
from helpers.stores import plan_of
from osp import Recipe, UserError
from osp.bench.store import Store, export
from osp.cli import app
from osp.models.model import Prediction
from osp.models.photo import PhotoModel
from osp.nets.pretrained import Backbone
from osp.photos.instant import fit_instant
from osp.photos.journal import JOURNAL, TABLE
from osp.photos.sorting import Action, sort_pile
from osp.runs.checkpoint import load_checkpoint, save_checkpoint
from osp.runs.fitted import ARRAYS
from osp.runs.folder import RunFolder
from osp.verify import verify


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(method="fixmatch", scale="demo", steps=6, threads=1, log_every=2, options={"batch": 8, "mu": 2})
    return run(recipe, tmp_path_factory.mktemp("verify") / "run").path


def problems(folder: Path) -> list[str]:
    return [problem for verdict in verify(folder) for problem in verdict.problems]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def changed(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")


def other_labels(folder: Path) -> None:
    with np.load(folder / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["test/targets"] = arrays["test/targets"][::-1]
    np.savez(folder / "predictions.npz", **arrays)


def other_images(folder: Path) -> None:
    with np.load(folder / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["pool/ids"] = arrays["pool/ids"][::-1]
    np.savez(folder / "predictions.npz", **arrays)


def without_validation(folder: Path) -> None:
    with np.load(folder / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in stored.files if not name.startswith("validation/")}
    np.savez(folder / "predictions.npz", **arrays)


def score_of_none(folder: Path) -> None:
    with np.load(folder / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["test_ood/scores/pool"] = np.full_like(arrays["test_ood/scores/pool"], np.nan)
    np.savez(folder / "predictions.npz", **arrays)


def without_targets(folder: Path) -> None:
    with np.load(folder / "predictions.npz") as stored:
        arrays = {name: stored[name] for name in stored.files if name != "test/targets"}
    np.savez(folder / "predictions.npz", **arrays)


def not_numbers(folder: Path) -> None:
    tensors, meta = load_checkpoint(folder / "model.safetensors")
    next(tensor for name, tensor in tensors.items() if name.startswith("encoder"))[0] = float("nan")
    save_checkpoint(folder / "model.safetensors", tensors, meta)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "plan.yaml": lambda folder: (folder / "plan.yaml").write_text("steps: -1", "utf-8"),
    "recipe.yaml": lambda folder: (folder / "recipe.yaml").write_text("[", "utf-8"),
    "split.npz": lambda folder: flip(folder / "split.npz"),
    "data.json": lambda folder: (folder / "data.json").write_text('{"a": 1}', "utf-8"),
    "metrics.jsonl": lambda folder: (folder / "metrics.jsonl").write_text(
        '{"step": 2, "kind": "train"}\n{"step": 2, "kind": "train"}\n', "utf-8"
    ),
    "checkpoints/last": lambda folder: flip(folder / "checkpoints/last.safetensors"),
    "checkpoints/best": lambda folder: flip(folder / "checkpoints/best.safetensors"),
    "model.safetensors: encoder": not_numbers,
    "map.json": lambda folder: (folder / "map.json").write_text("{}", "utf-8"),
    "result.json": lambda folder: changed(folder / "result.json", accuracy="high"),
    "result.json: it belongs": lambda folder: changed(folder / "result.json", identity="x"),
    "figures: accuracy": lambda folder: changed(folder / "result.json", accuracy=99.9),
    "figures": other_labels,
    "figures: its": other_images,
    "figures: its 0 images of validation": without_validation,
    "result.json: ": lambda folder: changed(folder / "result.json", confusion=[[1, 2], [3]]),
    "predictions.npz: ": score_of_none,
    "predictions.npz": without_targets,
    "checkpoints/link": lambda folder: (folder / "checkpoints/link").symlink_to("/etc/passwd"),
}


def test_a_good_run_is_whole_and_a_killed_process_only_leaves_notes(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / ".result.json.x.partial").touch()
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 6, "ki')
    (verdict,) = verify(folder)
    assert verdict.whole
    assert len(verdict.checked) >= 10
    assert len(verdict.notes) == 2


@pytest.mark.parametrize("what", DAMAGE)
def test_each_damage_is_found_and_named(what: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    DAMAGE[what](folder)
    assert any(problem.startswith(what) for problem in problems(folder)), problems(folder)


def test_a_lock_that_cannot_be_looked_at_is_no_other_process(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    refused = contextlib.contextmanager(lambda *_: (_ for _ in ()).throw(UserError("Cannot lock it: read-only.")))
    monkeypatch.setattr("osp.verify.owned", refused)
    (verdict,) = verify(tmp_path / "run")
    assert verdict.whole
    assert verdict.notes == ["whether another process is at work here: Cannot lock it: read-only."]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pipes")
@pytest.mark.parametrize("name", ["plan.yaml", "recipe.yaml", "model.safetensors", "checkpoints/last.safetensors"])
def test_a_pipe_in_the_place_of_a_file_is_told_and_not_waited_for(name: str, finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    pipe(folder / name)
    assert any("it is no file" in problem for problem in problems(folder))


def test_a_store_is_verified_with_all_its_runs(finished: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.create()
    for name in ("one", "two"):
        shutil.copytree(finished, store.root / name)
    assert [verdict.kind for verdict in verify(store.root)] == ["store", "run", "run"]
    assert problems(store.root) == []
    flip(RunFolder(store.root / "two").last)
    (store.root / "one/run.json").write_text("{", "utf-8")
    assert len(problems(store.root)) == 2


def test_runs_that_are_lines_are_verified_one_by_one(tmp_path: Path) -> None:
    store, small = Store(tmp_path / "store"), tmp_path / "results"
    finished_run(store, plan_of())
    finished_run(store, plan_of(seed=1))
    export(store.runs(), Store(small))
    (verdict,) = verify(small)
    assert (verdict.kind, verdict.problems, len(verdict.checked)) == ("store", [], 4)
    path = small / "digits.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second}\n{second[:50]}")
    assert problems(small) == []
    assert [note for verdict in verify(small) for note in verdict.notes if "line 3 was cut off" in note]
    other = first.replace('"steps":10,"eval_every"', '"steps":11,"eval_every"')
    path.write_text(f"{other}\nno\n{second}\n")
    (small / "map-other.json").write_text("{")
    found = problems(small)
    assert [problem for problem in found if "digits.jsonl, line 2 is passed over" in problem]
    assert [problem for problem in found if "its plan has" in problem]
    assert [problem for problem in found if problem == "map-other.json: there is no line of such a run"]
    assert len(found) == 4
    renamed = json.dumps({**json.loads(first), "name": json.loads(first)["name"].replace("supervised", "osp")})
    path.write_text(f"{renamed}\n{second}\n")
    (small / "map-other.json").unlink()
    (problem,) = problems(small)
    assert "-osp-" in problem
    assert f"its name is another than that of its plan, {json.loads(first)['name']}" in problem


def test_the_results_of_the_repository_are_whole() -> None:
    results = Path(__file__).parents[1] / "results"
    found = {verdict.path: (verdict.kind, verdict.problems, verdict.notes) for verdict in verify(results)}
    assert found == {folder: ("store", [], []) for folder in (results, results / "repeats", results / "rounding")}


def test_what_is_none_of_them_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="no"):
            list(verify(path))


def sorted_photos(root: Path, action: Action) -> Path:
    """Three photos sorted into a folder."""
    (root / "pile").mkdir(parents=True)
    decisions = []
    for number in range(3):
        file = root / "pile" / f"{number}.jpg"
        file.write_bytes(b"photo %d" % number)
        decisions.append(Prediction(str(file), "cat", 0.9, 0.1, True))
    sort_pile(decisions, root / "out", action)
    return root / "out"


@pytest.mark.parametrize("action", ["link", "copy", "move"])
def test_sorted_photos_are_whole_until_one_cannot_be_put_back(action: Action, tmp_path: Path) -> None:
    out = sorted_photos(tmp_path, action)
    (verdict,) = verify(out)
    assert (verdict.kind, verdict.problems, verdict.notes) == ("sorted folder", [], [])
    first, second, third = (out / "cat" / f"{number}.jpg" for number in range(3))
    first.unlink()
    second.unlink()
    second.write_bytes(b"another, longer photo")
    found = problems(out)
    assert any("1.jpg" in problem for problem in found)
    assert any("0.jpg: neither here nor" in problem for problem in found) == (action == "move")
    assert not any(third.name in problem for problem in found)


def test_a_journal_cut_short_is_a_note_and_a_damaged_or_hostile_one_a_problem(tmp_path: Path) -> None:
    out = sorted_photos(tmp_path, "copy")
    journal = out / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"action": "co')
    (verdict,) = verify(out)
    assert verdict.whole
    assert "cut off" in verdict.notes[0]
    journal.write_bytes(b"nonsense\n" + whole)
    assert problems(out) == [f"{JOURNAL}: line 1 is damaged"]
    outside = {"action": "move", "from": "/etc/passwd", "to": "../../etc/passwd", "size": 1}
    journal.write_bytes(whole + json.dumps(outside).encode() + b"\n")
    assert "outside the folder" in problems(out)[0]


def test_a_sort_that_was_stopped_is_interrupted_and_it_is_said_what_to_do(tmp_path: Path) -> None:
    """Before its table was written, and when it had gone on from a finished one."""
    out = sorted_photos(tmp_path, "move")
    journal = out / JOURNAL
    whole = journal.read_bytes()
    more = {"action": "move", "from": str(tmp_path / "pile/0.jpg"), "to": "cat/0.jpg", "size": 7}
    journal.write_bytes(whole + json.dumps(more).encode() + b"\n")
    (verdict,) = verify(out)
    assert (verdict.problems, verdict.whole) == ([], False)
    journal.write_bytes(whole)
    (out / TABLE).unlink()
    (verdict,) = verify(out)
    assert (verdict.problems, verdict.whole) == ([], False)
    said = CliRunner().invoke(app, ["verify", str(out)])
    assert said.exit_code == 1
    assert "INTERRUPTED" in said.output
    assert "Go on with the same osp sort" in said.output
    assert f"osp sort --undo {out}" in said.output
    assert "DAMAGED" not in said.output
    assert "whole" not in said.output


def test_odd_names_of_sorted_photos_break_no_line(tmp_path: Path) -> None:
    (tmp_path / "pile").mkdir()
    file = tmp_path / "pile/new\nline.jpg"
    file.write_bytes(b"photo")
    sort_pile([Prediction(str(file), "cat", 0.9, 0.1, True)], tmp_path / "out", "move")
    (tmp_path / "out/cat/new\nline.jpg").unlink()
    assert len(problems(tmp_path / "out")[0].splitlines()) == 1


def test_a_photo_model_is_verified_without_its_backbone(tmp_path: Path) -> None:
    """A backbone of this name does not exist: loading the model would fail."""
    draws = np.random.default_rng(0)
    rows, names = draws.normal(size=(8, 6)).astype(np.float32), ("a", "b")
    instant = fit_instant(rows, np.arange(8) % 2, rows[:0], names)
    backbone = Backbone("gone", "checksum", torch.nn.Identity(), 8, (0.0,) * 3, (1.0,) * 3, 6, "none")
    PhotoModel(instant, backbone).save(tmp_path)
    assert problems(tmp_path) == []
    flip(tmp_path / ARRAYS)
    assert "checksum" in problems(tmp_path)[0]
