"""`osp verify` finds what is wrong with a folder, and nothing wrong with a good one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import run
from osp import Recipe, UserError
from osp.bench.store import Store
from osp.engine.checkpoint import load_checkpoint, save_checkpoint
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
    "result.json": lambda folder: changed(folder / "result.json", accuracy="high"),
    "result.json: it belongs": lambda folder: changed(folder / "result.json", identity="x"),
    "figures: accuracy": lambda folder: changed(folder / "result.json", accuracy=99.9),
    "figures": other_labels,
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


def test_what_is_none_of_them_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="no"):
            list(verify(path))
