"""What is killed: trainings of several methods, a report, sorting and its undoing, a bench's book-keeping, the cache of
decoded images, unpacking."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import osp
from osp.bench.store import Store
from osp.data.fetch import extract
from osp.engine.train import train
from osp.models.model import Prediction
from osp.photos.sorting import sort_pile
from osp.photos.undoing import undo
from osp.recipe import Recipe, make_plan
from osp.runs.checkpoint import load_checkpoint
from osp.runs.folder import RunFolder
from osp.verify import verify_run
from torture.kill import Work

METHODS = ("supervised", "fixmatch", "t2t", "osp", "curriculum", "ds3l")
"""With and without stages, partition and refreshes, a bank, fresh weights, an optimiser beside the main one."""


def all_works() -> Iterator[Work]:
    for method in METHODS:
        yield training(method)
    yield Work("report", _finished, _report, _report, _same_report, costly=True)
    yield Work("sort", _photos, _sort, _sort, _all_sorted)
    yield Work("sort, then undo", _photos, _sort, _undo, _all_back)
    yield Work("undo", _sorted, _undo, _undo, _all_back)
    yield Work("store", _nothing, _keep, _keep, _kept)
    yield Work("bench", _grid, _bench, _bench, _same_table, alone=False, costly=True)
    yield Work("cache", _images, _decode, _decode, _same_pixels)
    yield Work("unpack", _archive, _unpack, _unpack, _unpacked)


def _nothing(folder: Path) -> None:
    pass


# Training


def recipe(method: str, steps: int = 8) -> Recipe:
    """A run of a second, with a checkpoint every other step."""
    options = {"batch": 8, **({} if method == "supervised" else {"mu": 2})}
    return Recipe(
        method=method, scale="demo", steps=steps, threads=1, log_every=1, eval_every=3, save_every=2, options=options
    )


def training(method: str, steps: int = 8) -> Work:
    start = partial(_start, method, steps)
    return Work(f"train {method}", _nothing, start, partial(_go_on, method, steps), _same_run)


def _start(method: str, steps: int, folder: Path) -> None:
    train(recipe(method, steps), folder / "run")


def _go_on(method: str, steps: int, folder: Path) -> None:
    train(recipe(method, steps), folder / "run", resume=RunFolder(folder / "run").begun())


def _same_run(folder: Path, good: Path) -> None:
    """The same bits in weights and model, the same metrics and figures, and nothing that verify would mind."""
    _same_bits(RunFolder(folder / "run"), RunFolder(good / "run"))


def _same_bits(one: RunFolder, other: RunFolder) -> None:
    for name in ("last", "model"):
        left, _ = load_checkpoint(getattr(one, name))
        right, _ = load_checkpoint(getattr(other, name))
        assert left.keys() == right.keys(), f"{name}: other tensors"
        differing = [key for key in left if not torch.equal(left[key], right[key])]
        assert not differing, f"{name}: {differing[:3]} differ"
    assert one.metrics.read_bytes() == other.metrics.read_bytes(), "metrics differ"
    for key, value in (one.read_result() or {}).items():
        assert key == "seconds" or value == (other.read_result() or {})[key], f"{key} differs in result.json"
    problems = verify_run(one.path).problems
    assert not problems, "; ".join(problems)


# A report


def _finished(folder: Path) -> None:
    kept = folder.parent / "finished-run"
    if not kept.exists():
        train(recipe("osp", 4), kept)
    shutil.copytree(kept, folder / "run")


def _report(folder: Path) -> None:
    from osp.report.page import write_report

    write_report(folder / "run", None, folder / "report.html")


def _same_report(folder: Path, good: Path) -> None:
    assert (folder / "report.html").read_bytes().rstrip().endswith(b"</html>"), "the page is cut off"
    assert not verify_run(folder / "run").problems, "the run was changed"


# Sorting

PHOTOS = 12


def _photos(folder: Path) -> None:
    (folder / "pile").mkdir()
    for number in range(PHOTOS):
        (folder / "pile" / f"{number}.jpg").write_bytes(bytes([number]) * 100)


def _decisions(folder: Path) -> list[Prediction]:
    return [
        Prediction(str(folder / "pile" / f"{n}.jpg"), ("cat", "dog")[n % 2], 0.5 + n / 30, 0.1, n % 5 > 0)
        for n in range(PHOTOS)
        if (folder / "pile" / f"{n}.jpg").exists()
    ]


def _sort(folder: Path) -> None:
    sort_pile(_decisions(folder), folder / "out", "move", 0.7)


def _sorted(folder: Path) -> None:
    _photos(folder)
    _sort(folder)


def _undo(folder: Path) -> None:
    if (folder / "out" / "sort-journal.jsonl").exists():
        done = undo(folder / "out")
        assert not done.problems, done.problems


def _contents(folder: Path, pattern: str) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.rglob(pattern) if path.is_file())


def _all_sorted(folder: Path, good: Path) -> None:
    every = [bytes([number]) * 100 for number in range(PHOTOS)]
    assert _contents(folder / "out", "*.jpg") == every, "photos are lost or double"
    assert not list((folder / "pile").iterdir()), "photos were left"
    places = {path.relative_to(folder) for path in (folder / "out").rglob("*.jpg")}
    assert places == {path.relative_to(good) for path in (good / "out").rglob("*.jpg")}, "photos lie elsewhere"


def _all_back(folder: Path, good: Path) -> None:
    if (folder / "out" / "sorted.csv").exists() and not list((folder / "pile").iterdir()):
        _all_sorted(folder, good)  # the kill came too late: the sort was done
        return
    assert _contents(folder / "pile", "*.jpg") == [bytes([n]) * 100 for n in range(PHOTOS)], "photos are lost"


# The book-keeping of a bench


def _keep(folder: Path) -> None:
    store = Store(folder / "store")
    plan = make_plan(Recipe(scale="demo", steps=4, threads=1))
    run = store.folder_for(plan)
    with store.claim(run.path.name, "busy"):
        store.note(run, plan, "failed", {}, "first")
        store.note(run, plan, "finished", {})


def _kept(folder: Path, good: Path) -> None:
    store = Store(folder / "store")
    plan = make_plan(Recipe(scale="demo", steps=4, threads=1))
    noted = json.loads((store.folder_for(plan).path / "run.json").read_text("utf-8"))
    assert noted["status"] == "finished", noted
    assert not store.busy(store.folder_for(plan).path.name), "the claim of a dead process holds"


# A whole bench, in processes of its own

GRID = """\
title: tiny
methods: [supervised, fixmatch]
datasets: [digits]
ratios: [0.6]
fields: {steps: 6, eval_every: 3, save_every: 2, log_every: 1, threads: 1, options: {batch: 8}}
"""


def _grid(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(GRID, "utf-8")


def _bench(folder: Path) -> None:
    from osp.cli import _run as run_command

    words = f"osp bench {folder / 'tiny.yaml'} --scale demo --jobs 2 --store {folder / 'store'} --out {folder / 'out'}"
    sys.argv = words.split()
    code = run_command()
    assert code == 0, f"exit code {code}"


def _same_table(folder: Path, good: Path) -> None:
    """The same numbers in the table, every run of it whole, with the same bits, and in the store once."""
    tables = [json.loads((place / "out" / "tiny.json").read_text("utf-8")) for place in (folder, good)]
    values = [[(c["row"], c["values"]) for c in table["cells"] if c["measure"] != "seconds"] for table in tables]
    assert values[0] == values[1], "the tables differ"
    names = [sorted(path.name for path in (place / "store").iterdir() if path.is_dir()) for place in (folder, good)]
    assert names[0] == names[1], "other folders in the store"
    for name in names[0]:
        if not name.startswith("."):
            _same_bits(RunFolder(folder / "store" / name), RunFolder(good / "store" / name))


# Decoded images


def _images(folder: Path) -> None:
    draws = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = draws.integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")


def _decode(folder: Path) -> None:
    import os

    os.environ["OSP_CACHE"] = str(folder / "cache")
    images, _ = osp.data.load("folder", folder / "photos", size=16)
    (folder / "key").write_text(images.content_key, "utf-8")


def _same_pixels(folder: Path, good: Path) -> None:
    assert (folder / "key").read_text("utf-8") == (good / "key").read_text("utf-8"), "other pixels"


# Unpacking


def _archive(folder: Path) -> None:
    (folder / "set").mkdir()
    for number in range(5):
        (folder / "set" / str(number)).write_bytes(bytes([number]) * 5000)
    with tarfile.open(folder / "set.tar.gz", "w:gz") as archive:
        archive.add(folder / "set", "set")
    shutil.rmtree(folder / "set")


def _unpack(folder: Path) -> None:
    extract(folder / "set.tar.gz", folder, "set")


def _unpacked(folder: Path, good: Path) -> None:
    found = [(folder / "set" / str(number)).read_bytes() for number in range(5)]
    assert found == [bytes([number]) * 5000 for number in range(5)], "files are cut off"
