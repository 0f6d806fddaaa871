"""What is fuzzed: recipes, data sets of every form, images, run folders, predictions, stores, sortings, arguments."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import re
import shutil
import struct
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

import osp
from osp import UserError
from osp.bench.store import Store
from osp.data.decode import Unreadable, decode
from osp.engine.progress import Display
from osp.engine.train import train
from osp.evaluate.predictions import Predictions
from osp.models.model import Prediction
from osp.photos.labels import BOOK, Book, Label
from osp.photos.sorting import sort_pile
from osp.photos.undoing import undo
from osp.recipe import Recipe, make_plan
from osp.runs.folder import RunFolder
from osp.verify import verify
from torture.asking import PIECES, ask, make_request
from torture.fuzz import Subject
from torture.works import recipe

RECIPE = """\
data: digits
method: fixmatch
scale: demo
steps: 20
labels_per_class: 5
ood_ratio: 0.5
id_classes: [0, 1, 2]
options: {batch: 8, mu: 2, lr: 0.03}
threads: 1
seed: 3
"""


def subjects() -> Iterator[Subject]:
    yield Subject("recipe", _recipe, ("recipe.yaml",), _plan, ("!!python/name:os.system", "&a [*a]", "<<: *x", "\t"))
    yield Subject("idx", _mnist, ("**/*ubyte*",), lambda folder: _load("mnist", folder))
    yield Subject("CIFAR pickles", _cifar_pickles, ("**/data_batch_*", "**/test_batch", "**/batches.meta"), _cifar)
    yield Subject("CIFAR binaries", _cifar_binaries, ("**/*.bin", "**/*.txt"), _cifar)
    yield Subject("STL binaries", _stl, ("**/*.bin", "**/*.txt"), lambda folder: _load("stl10", folder))
    yield Subject("images", _images, ("*",), _decode_all)
    yield Subject("run folder", _run, ("run/**/*",), _resume)
    yield Subject("unfinished run", _unfinished, ("run/**/*",), _resume)
    yield Subject("report", _run, ("run/*.json*", "run/*.npz", "run/*.yaml"), _report)
    yield Subject("verify", _run, ("run/**/*",), lambda folder: [len(v.problems) for v in verify(folder / "run")])
    yield Subject(
        "predictions", _run, ("run/predictions.npz",), lambda f: Predictions.load(f / "run/predictions.npz").score
    )
    yield Subject("model file", _run, ("run/model.safetensors",), lambda folder: repr(osp.load(folder / "run")))
    yield Subject("store", _store, ("**/*.json", "**/*.yaml"), _read_store)
    yield Subject("sort journal", _sorted, ("out/sort-journal.jsonl",), _undone)
    yield Subject("labels", _book, (BOOK,), _opened, ('"', ",", "none"))
    yield Subject("grid file", _grid, ("grid.yaml",), _read_grid, ("!!python/name:os.system", "&a [*a]", "./evil.py"))
    yield Subject("arguments", _arguments, ("arguments-*",), _command, ("--help", "--set", "--out", "--resume", "osp"))
    yield Subject("HTTP requests", make_request, ("request.json", "body"), ask, PIECES)


def _recipe(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE, "utf-8")


def _plan(folder: Path) -> Any:
    asked = Recipe.read(folder / "recipe.yaml")
    if asked.data_dir or asked.ood_dir or (asked.data not in (None, "digits")):
        return None  # other sets are read elsewhere
    return make_plan(asked).identity()


def _load(name: str, folder: Path) -> Any:
    os.environ["OSP_CACHE"] = str(folder.parent / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train_set, test_set = osp.data.load(name, folder)
    return train_set.content_key, test_set and test_set.content_key


def _mnist(folder: Path) -> None:
    draws = np.random.default_rng(0)
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 40), ("t10k", 20)):
        images = draws.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        content = struct.pack(">BBBBIII", 0, 0, 8, 3, count, 28, 28) + images.tobytes()
        if part == "train":
            (raw / f"{part}-images-idx3-ubyte").write_bytes(content)
        else:
            (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, count) + labels)


def _batch(seed: int, protocol: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 3072), dtype=np.uint8)
    names = [f"image_{number}.png".encode() for number in range(20)]
    batch = {b"batch_label": b"batch", b"labels": [n % 10 for n in range(20)], b"data": pixels, b"filenames": names}
    return pickle.dumps(batch, protocol)


def _cifar_pickles(folder: Path) -> None:
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for number in range(1, 6):
        (place / f"data_batch_{number}").write_bytes(_batch(number, 2 + number % 3))
    (place / "test_batch").write_bytes(_batch(9, 2))
    (place / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"c%d" % n for n in range(10)]}, 2))


def _cifar_binaries(folder: Path) -> None:
    place = folder / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(0, 256, (20, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(20) % 10
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (place / name).write_bytes(rows.tobytes())
    (place / "batches.meta.txt").write_text("\n".join(f"c{n}" for n in range(10)), "utf-8")


def _cifar(folder: Path) -> Any:
    return _load("cifar10", folder)


def _stl(folder: Path) -> None:
    place = folder / "stl10_binary"
    place.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for name, count in (("train_X", 10), ("test_X", 10), ("unlabeled_X", 4)):
        (place / f"{name}.bin").write_bytes(draws.integers(0, 256, count * 27648, dtype=np.uint8).tobytes())
    for name in ("train_y", "test_y"):
        (place / f"{name}.bin").write_bytes(bytes(range(1, 11)))
    (place / "class_names.txt").write_text("\n".join("abcdefghij"), "utf-8")


def _images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 31, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for ending in ("jpg", "png", "webp", "bmp", "tif", "gif"):
        image.save(folder / f"a.{ending}")
    image.convert("P").save(folder / "p.png", transparency=3)
    image.convert("RGBA").save(folder / "t.png")
    Image.fromarray(pixels[..., 0].astype(np.float32)).save(folder / "f.tif")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(folder / "d.png")


def _decode_all(folder: Path) -> int:
    good, reasons = 0, []
    for path in sorted(folder.iterdir()):
        try:
            good += decode(str(path), 16).shape == (3, 16, 16)
        except Unreadable as reason:
            reasons.append(str(reason))
    if reasons:
        raise UserError("; ".join(reasons)[:1000])
    return good


def _kept(folder: Path, name: str, steps: int, stop: bool) -> Path:
    """A run that is made once for all cases."""
    kept = folder.parent / name
    if not kept.exists():
        if stop:
            with contextlib.suppress(StopIteration):
                train(recipe("osp", steps), kept, display=_Stop())
        else:
            train(recipe("osp", steps), kept)
    return kept


class _Stop(Display):
    """A display that breaks a run off after its fifth step, between two checkpoints."""

    def step(self, done: int, stage: str) -> None:
        if done == 5:
            raise StopIteration


def _run(folder: Path) -> None:
    shutil.copytree(_kept(folder, "kept-finished", 4, False), folder / "run")


def _unfinished(folder: Path) -> None:
    shutil.copytree(_kept(folder, "kept-unfinished", 8, True), folder / "run")


def _resume(folder: Path) -> Any:
    return train(Recipe(), folder / "run", resume=True).result["accuracy"]


def _report(folder: Path) -> Any:
    """With a fourth of t-SNE's iterations, which take most of a report's time and meet nothing that is damaged."""
    import sklearn.manifold

    from osp.report.page import write_report

    with patch.object(sklearn.manifold, "TSNE", partial(sklearn.manifold.TSNE, max_iter=250)):
        return write_report(folder / "run", None, folder / "report.html")


def _predictions(folder: Path) -> str:
    return Predictions.load(folder / "run/predictions.npz").score


def _store(folder: Path) -> None:
    store = Store(folder / "store")
    store.create()
    kept = _kept(folder, "kept-finished", 4, False)
    plan = osp.Plan.read(RunFolder(kept).plan)
    place = store.folder_for(plan)
    shutil.copytree(kept, place.path)
    store.note(place, plan, "finished", {"cores": 2})


def _read_store(folder: Path) -> Any:
    store = Store(folder / "store")
    found = [(run.name, run.versions, run.stale, run.lacks(run.plan)) for run in store.runs()]
    plan = make_plan(recipe("osp", 4))
    return found, store.status(plan, {"a": "b"}), store.status(plan), store.failure(store.folder_for(plan))


def _undone(folder: Path) -> int:
    return undo(folder / "out", trust_journal=True).restored


def _sorted(folder: Path) -> None:
    (folder / "pile").mkdir()
    files = [folder / "pile" / f"{number}.jpg" for number in range(4)]
    for file in files:
        file.write_bytes(b"x")
    sort_pile([Prediction(str(file), "cat", 0.9, 0.1, True) for file in files], folder / "out", "copy")


def _book(folder: Path) -> None:
    book = Book(folder / BOOK)
    for number in range(20):
        book.add([Label(f"/pile/{name}.jpg", "cat", f"{number:032x}") for name in (number, f"{number},\n{number}")])


def _opened(folder: Path) -> int:
    """As `osp label` opens it to go on: it may cut off the last line, and no more."""
    before = (folder / BOOK).read_bytes()
    answers = Book(folder / BOOK).answers
    cut = before[len((folder / BOOK).read_bytes()) :]
    assert len(re.findall(rb"^0{30}|,0{30}", cut)) < 2, f"cut off: {cut[:300]!r}"
    return len(answers)


GRID = """\
title: tiny
measure: auroc
also: [accuracy]
rows:
  - {name: plain, method: supervised}
  - {name: best, method: osp, options: {alpha: 0.5, mu: 2}}
settings:
  - {name: few, labels_per_class: 2}
  - {name: many, labels_per_class: 9}
datasets: [digits]
ratios: [0.3, 0.6]
lengths: [0.5, 1]
fields: {steps: 6, options: {batch: 8}}
paper:
  columns: [few 0.3]
  rows: {plain: [50.1], best: [null]}
"""


def _grid(folder: Path) -> None:
    (folder / "grid.yaml").write_text(GRID, "utf-8")


def _read_grid(folder: Path) -> Any:
    from osp.bench.cells import Choice, expand
    from osp.bench.grid import find_grid

    return [plan.identity() for plan in expand(find_grid(str(folder / "grid.yaml")), Choice(scale="demo")).plans]


WORDS = "--scale demo --steps 2 --set threads=1 --set batch=8 --method supervised --out run"
COMMANDS = (
    f"train --data digits {WORDS}",
    "predict kept pile --out table.csv --batch 4",
    "sort pile --model kept --out sorted --move",
    "verify kept",
    "methods fixmatch --preset paper --data cifar100",
    "settings --data digits --method osp --scale demo",
    "datasets --data-dir pile",
)


def _arguments(folder: Path) -> None:
    """One file per command, one argument per line; a model and images that they may name."""
    for number, words in enumerate(COMMANDS):
        (folder / f"arguments-{number}").write_text("\n".join(words.split()), "utf-8")
    shutil.copytree(_kept(folder, "kept-finished", 4, False), folder / "kept")
    (folder / "pile").mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pile" / f"{number}.png")


def _command(folder: Path) -> int:
    """The command whose arguments were damaged; only its own words for mistakes are a refusal."""
    from osp.cli import _run as run_command

    good = ["\n".join(words.split()).encode() for words in COMMANDS]
    given = [(folder / f"arguments-{number}").read_bytes() for number in range(len(COMMANDS))]
    changed = next((found for found, known in zip(given, good, strict=True) if found != known), given[0])
    words = changed.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    os.chdir(folder)
    os.environ["OSP_CACHE"], os.environ["OSP_MIRROR"] = str(folder.parent / "cache"), "http://127.0.0.1:9"
    if any(word in ("bench", "demo", "paper", "serve", "fit") or word.startswith("/") for word in words):
        return 0  # minutes of work, or places that are not ours
    sys.argv = ["osp", *words]
    sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    code = run_command()
    if code == 2 and not (folder / "run").exists():
        raise UserError(sys.stderr.getvalue()[:1000])
    return code
