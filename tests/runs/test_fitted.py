"""Fits whose files are damaged, or were made to do harm: a sentence in every case, and nothing is waited for."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.bombs import deep, endless, huge, pipe
from helpers.small_backbone import small_backbone, write_photo
from osp.errors import UserError
from osp.models import load
from osp.models.photo import BACKBONES
from osp.photos.fit import fit
from osp.photos.folder import labels_of
from osp.report.fitted import FittedView
from osp.runs.fitted import read_fit, result_of
from osp.runs.run import Run
from osp.serve.served import file_photos
from osp.verify import verify


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fitted")
    for number in range(36):
        place = ("sorted/a", "sorted/b", "pile", "test/a", "test/b", "test/other")[number % 6]
        write_photo(root / place / f"{number}.png", number)
    for number in range(100, 180):  # enough to be asked about
        write_photo(root / "pile" / f"{number}.png", number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSP_CACHE", str(root / "cache"))
        fit(root / "sorted", root / "pile", root / "run", backbone=small_backbone(), test=root / "test")
    return root / "run"


@pytest.fixture
def copy(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)
    return shutil.copytree(fitted, tmp_path / "copy")


def words(folder: Path) -> None:
    """All that a page says of a fit, without pictures."""
    view = FittedView(Run.read(folder))
    view.sentences(), view.numbers(), view.more(None, ""), view.histograms(), view.galleries(None, "")


WRONG: tuple[Any, ...] = (None, True, -1, 5, 1e308, float("nan"), 2**80, "x", "x" * 20_000, [], [[]], {}, {"a": {}})


def edits(value: Any) -> Iterator[Any]:
    """The same JSON with one field left out or replaced."""
    if isinstance(value, dict):
        for key in value:
            yield {other: kept for other, kept in value.items() if other != key}
            for wrong in (*WRONG, *edits(value[key])):
                yield {**value, key: wrong}


def test_every_field_of_a_result_may_be_anything(copy: Path) -> None:
    path = copy / "result.json"
    good = json.loads(path.read_text())
    tried = 0
    for edited in edits(good):
        path.write_text(json.dumps(edited))
        try:
            words(copy)
        except UserError:
            tried += 1
    assert tried > 300


def test_a_fit_of_photos_whose_names_are_not_utf8_is_read(copy: Path) -> None:
    path = copy / "result.json"
    figures = json.loads(path.read_text())
    figures |= {"pile": "/photos/caf\udce9", "groups": [{"name": "1", "photos": 1, "surest": ["/photos/\udce9.jpg"]}]}
    figures["pile_photos"]["classes"] = {"\udce9": {"let_in": 1, "right": 1, "strangers": 0}}
    path.write_text(json.dumps(figures))
    assert read_fit(copy)[0] == figures
    path.write_text(json.dumps({**figures, "pile": 3}))
    with pytest.raises(UserError, match=r"pile is 3: it should be a valid string"):
        read_fit(copy)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pipes and devices")
@pytest.mark.parametrize("harm", [deep, pipe, endless, huge])
@pytest.mark.parametrize(
    ("name", "readers"),
    [
        ("photos.json", [load, read_fit]),
        ("result.json", [result_of, read_fit]),
        ("labels.json", [labels_of, read_fit]),
        ("photos.safetensors", [load, read_fit]),
        ("pile.csv", [read_fit]),
        ("sample.npz", [read_fit]),
        ("SHA256SUMS", []),
    ],
)
def test_what_is_no_file_of_ours_costs_a_sentence(
    name: str, readers: list[Callable[[Path], Any]], harm: Callable[[Path], None], copy: Path
) -> None:
    if name == "photos.safetensors" and harm is huge:
        facts = json.loads((copy / "photos.json").read_text())
        (copy / "photos.json").write_text(json.dumps({**facts, "arrays": None}))
    harm(copy / name)
    for read in readers:
        with pytest.raises(UserError, match=r"damaged|no fit|no photo model|missing"):
            read(copy)
    (verdict,) = verify(copy)
    assert not verdict.whole


def changed(folder: Path, **arrays: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change arrays of a model, its checksum with them."""
    stored = load_file(folder / "photos.safetensors")
    save_file({name: arrays.get(name, np.copy)(array) for name, array in stored.items()}, folder / "photos.safetensors")
    facts = json.loads((folder / "photos.json").read_text())
    (folder / "photos.json").write_text(json.dumps({**facts, "arrays": None}))


@pytest.mark.parametrize(
    "arrays",
    [
        {"labels": lambda a: a.astype(np.float32)},
        {"labels": lambda a: a > 0},
        {"id_scores": lambda a: a[None]},
        {"held_out": lambda a: a[:, :1]},
        {"weight": lambda a: a * np.nan},
        {name: lambda a: a[..., :4] for name in ("mean", "weight", "labeled", "references")},
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_model_and_page(arrays: Any, copy: Path) -> None:
    changed(copy, **arrays)
    with pytest.raises(UserError, match="damaged"):
        load(copy)
    if "mean" not in arrays:  # the page needs no backbone, and takes any width
        with pytest.raises(UserError, match="damaged"):
            read_fit(copy)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pipes and devices")
@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_labels_that_name_no_photo_are_not_opened(name: str, copy: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    rows = json.loads((copy / "labels.json").read_text())
    rows[0][0] = str(tmp_path / name)
    (copy / "labels.json").write_text(json.dumps(rows))
    photos = file_photos(copy, len(rows))
    assert photos(0) is None
    assert photos(1) is not None
