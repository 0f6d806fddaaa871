"""A photo model says of every file what it is, survives saving, and reads nothing but data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load as load_arrays
from safetensors.numpy import load_file, save_file
from safetensors.numpy import save as save_arrays

import osp
from helpers.small_backbone import small_backbone
from osp.engine.train import train
from osp.errors import UserError
from osp.models.photo import BACKBONES, PhotoModel, load_model
from osp.photos.features import compute
from osp.photos.instant import fit_instant
from osp.runs.fitted import ARRAYS, FACTS

COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200), "green": (40, 200, 40)}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))


def photo(color: str, seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    noise = np.random.default_rng(seed).normal(size=(size[1], size[0], 3)) * 25
    return Image.fromarray(np.clip(np.array(COLORS[color]) + noise, 0, 255).astype(np.uint8))


def fitted(folder: Path) -> PhotoModel:
    folder.mkdir()
    files, labels = [], []
    for number, color in enumerate(["red", "blue"]):
        for seed in range(8):
            files.append(folder / f"{color}{seed}.png")
            photo(color, 100 * number + seed).save(files[-1])
            labels.append(number)
    pile = []
    for seed in range(60):
        pile.append(folder / f"pile{seed}.png")
        photo(("red", "blue", "green")[seed % 3], 1000 + seed).save(pile[-1])
    backbone = small_backbone()
    rows, others = compute(files, backbone).rows(), compute(pile, backbone).rows()
    return PhotoModel(fit_instant(rows, np.array(labels), others, ["red", "blue"]), backbone)


def test_files_of_any_kind_are_told_apart_and_bad_ones_do_not_stop_the_rest(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    red = photo("red", 5, (300, 200))
    kinds = {
        "plain.jpg": red,
        "tiny.png": photo("red", 6, (9, 9)),
        "huge.png": photo("red", 6, (2500, 1500)),
        "cmyk.tif": red.convert("CMYK"),
        "palette.gif": red.convert("P"),
        "transparent.png": red.convert("RGBA"),
        "new\nline ü.png": red,
    }
    files = []
    for name, image in kinds.items():
        files.append(tmp_path / name)
        image.save(files[-1])
    files.append(tmp_path / "animated.gif")
    red.save(files[-1], save_all=True, append_images=[photo("blue", 7, (300, 200))])
    files.append(tmp_path / "rotated.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    red.save(files[-1], exif=exif)
    deep = tmp_path / "deep.png"
    Image.fromarray(np.full((40, 40), 40_000, np.uint16)).save(deep)
    corrupt, gone = tmp_path / "corrupt.jpg", tmp_path / "gone.jpg"
    corrupt.write_bytes(files[0].read_bytes()[:100])
    foreign = tmp_path / "green.png"
    photo("green", 9).save(foreign)
    found = list(model.predict_files([*files, corrupt, gone, deep, foreign]))
    assert [prediction.file for prediction in found] == [str(file) for file in [*files, corrupt, gone, deep, foreign]]
    for prediction in found[: len(files)]:
        assert not prediction.reason, prediction
        assert prediction.label == "red", prediction
        assert sum(prediction.probabilities) == pytest.approx(1, abs=1e-4)
        assert prediction.probability == pytest.approx(max(prediction.probabilities))
    for prediction in found[len(files) : len(files) + 2]:
        assert prediction.reason
        assert prediction.reason
    assert not found[-2].reason
    assert not found[-1].reason
    assert not found[-1].inside


def test_a_saved_model_says_the_same(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    model.save(tmp_path / "run")
    again = load_model(tmp_path / "run", small_backbone())
    files = sorted((tmp_path / "in").glob("pile*.png"))
    assert list(again.predict_files(files)) == list(model.predict_files(files))
    assert list(again.predict_files(str(files[0]))) == list(model.predict_files(files[:1]))
    assert again.instant.estimate == model.instant.estimate
    assert again.instant.threshold() == pytest.approx(model.instant.threshold())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [FACTS, ARRAYS]


def test_a_head_with_a_mean_of_its_own_is_saved(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    instant = replace(model.instant, smoothing=0.0, head_mean=model.instant.mean + 0.3)
    PhotoModel(instant, model.backbone).save(tmp_path / "run")
    again = load_model(tmp_path / "run", small_backbone()).instant
    features = np.random.default_rng(0).normal(size=(9, 48)).astype(np.float32)
    np.testing.assert_array_equal(again.logits(features), instant.logits(features))
    np.testing.assert_array_equal(again.ood_score(features), model.instant.ood_score(features))
    assert np.abs(again.logits(features) - model.instant.logits(features)).max() > 0.01
    facts = json.loads((tmp_path / "run" / FACTS).read_text())
    assert facts["format"] == 4  # earlier versions refuse it instead of misreading it


def test_fits_of_version_0_1_are_read_as_they_were(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    assert model.instant.asked is not None
    before = replace(model.instant, asked=None)
    PhotoModel(before, model.backbone).save(tmp_path / "run")
    facts = json.loads((tmp_path / "run" / FACTS).read_text())
    (tmp_path / "run" / FACTS).write_text(json.dumps({**facts, "format": 2}))
    again = load_model(tmp_path / "run", small_backbone()).instant
    features = np.random.default_rng(0).normal(size=(9, 48)).astype(np.float32)
    np.testing.assert_array_equal(again.ood_score(features), before.ood_score(features))
    assert np.abs(again.ood_score(features) - model.instant.ood_score(features)).max() > 0.01


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("neighbors.values", lambda values: values[:-1]),
        ("clusters.known", lambda known: known[:, :-1]),
        ("clusters.basis", lambda basis: basis * np.nan),
        ("spread", lambda spread: 0 * spread),
        ("middle", lambda middle: middle.astype(np.int32)),
    ],
)
def test_what_asks_the_pile_is_checked(tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    fitted(tmp_path / "in").save(tmp_path / "run")
    facts = json.loads((tmp_path / "run" / FACTS).read_text())
    arrays = load_arrays((tmp_path / "run" / ARRAYS).read_bytes())
    for changed in (
        {f"asked.{name}": np.ascontiguousarray(change(arrays[f"asked.{name}"]))},
        {"asked.more": arrays["bias"]},
    ):
        content = save_arrays(arrays | changed)
        (tmp_path / "run" / ARRAYS).write_bytes(content)
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        (tmp_path / "run" / FACTS).write_text(json.dumps({**facts, "arrays": digest}))
        with pytest.raises(UserError, match=r"is damaged .*asked"):
            load_model(tmp_path / "run", small_backbone())


def test_accept_moves_the_decision(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    files = sorted((tmp_path / "in").glob("*.png"))

    def accepted(share: float) -> int:
        return sum(found.inside for found in model.predict_files(files, share))

    assert accepted(0.3) < accepted(0.95)


def test_damaged_missing_and_other_models_are_refused_in_a_sentence(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    run = tmp_path / "run"
    with pytest.raises(UserError, match="holds no photo model"):
        load_model(run)
    model.save(run)
    with pytest.raises(UserError, match="features of tiles"):
        load_model(run, small_backbone("other weights"))
    facts = json.loads((run / FACTS).read_text())
    arrays = load_file(run / ARRAYS)

    def refused(match: str, changed: dict[str, object]) -> None:
        (run / FACTS).write_text(json.dumps({**facts, **changed}))
        with pytest.raises(UserError, match=match):
            load_model(run, small_backbone())

    refused("format 99", {"format": 99})
    refused("damaged", {"class_names": ["one"]})
    refused("damaged", {"neighbors": 10**6})
    refused("damaged", {"temperature": "hot"})
    refused("damaged", {"estimate": {"wrong": 1}})
    (run / FACTS).write_text(json.dumps(facts))
    save_file({**arrays, "weight": arrays["weight"][:, :5].copy()}, run / ARRAYS)
    with pytest.raises(UserError, match="damaged"):
        load_model(run, small_backbone())
    (run / ARRAYS).write_bytes(b"nonsense")
    with pytest.raises(UserError, match="damaged"):
        load_model(run, small_backbone())
    (run / FACTS).write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        load_model(run, small_backbone())


def test_a_model_says_what_it_is(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    assert repr(model) == f"PhotoModel(2 classes: red, blue; images 3×{model.size}×{model.size}; {model.network})"


def with_answer(model: PhotoModel, **changes: Any) -> PhotoModel:
    return PhotoModel(replace(model.instant, **changes), model.backbone)


ODD_ARRAYS: dict[str, np.ndarray | float] = {
    "weight": np.nan,
    "mean": np.nan,
    "bias": 3e38,
    "references": np.inf,
    "labeled": np.nan,
    "id_scores": np.nan,
    "pile_scores": -np.inf,
}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_numbers_that_are_none_or_overflow_are_refused(tmp_path: Path, name: str) -> None:
    model = fitted(tmp_path / "in")
    changed = np.array(getattr(model.instant, name))
    changed.flat[0] = ODD_ARRAYS[name]
    with_answer(model, **{name: changed}).save(tmp_path / "run")
    with pytest.raises(UserError, match=f"is damaged .{name} holds a number"):
        load_model(tmp_path / "run", small_backbone())


@pytest.mark.parametrize(
    "odd", [{"temperature": t} for t in (0.0, -1.0, np.nan, np.inf, 1e-30)] + [{"smoothing": 2.0}, {"strength": np.nan}]
)
def test_a_temperature_that_is_none_is_refused(tmp_path: Path, odd: dict[str, float]) -> None:
    model = fitted(tmp_path / "in")
    with_answer(model, **odd).save(tmp_path / "run")
    with pytest.raises(UserError, match=f"{next(iter(odd))} is .*: it should be"):
        load_model(tmp_path / "run", small_backbone())


def test_arrays_of_another_type_or_with_more_axes_are_refused(tmp_path: Path) -> None:
    model = fitted(tmp_path / "in")
    for name, odd in (
        ("labels", model.instant.labels.astype(np.float32)),
        ("weight", model.instant.weight.astype(np.int32)),
        ("id_scores", model.instant.id_scores[:, None]),
    ):
        with_answer(model, **{name: odd}).save(tmp_path / "run")
        with pytest.raises(UserError, match=f"is damaged .{name}"):
            load_model(tmp_path / "run", small_backbone())


def test_osp_load_opens_a_fit_as_it_opens_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)
    fitted(tmp_path / "in").save(tmp_path / "fit")
    recipe = osp.Recipe(data="digits", method="supervised", scale="demo", steps=2)
    images = np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)
    file = next((tmp_path / "in").glob("*.png"))
    for model in (osp.load(tmp_path / "fit"), osp.load(train(recipe, tmp_path / "run").path)):
        said = model(images)
        classes = len(model.class_names)
        assert said.probabilities.shape == model.predict_proba(images).shape == (3, classes)
        np.testing.assert_allclose(said.probabilities.sum(axis=1), 1, atol=1e-5)
        assert model.predict(images).tolist() == said.probabilities.argmax(axis=1).tolist()
        assert said.is_ood.tolist() == (model.ood_score(images) > model.threshold).tolist()
        assert len(model.features(images)) == 3
        assert model.threshold_for(0.5) <= model.threshold_for(0.99)
        assert [each.label in model.class_names for each in model.predict_files([file])] == [True]
        assert model.predict([file, images[0]]).shape == (2,)
    with pytest.raises(UserError, match="is not there"):
        osp.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds a fit, which takes neither network nor method nor score"):
        osp.load(tmp_path / "fit", method="./mine.py")
    (tmp_path / "fit" / FACTS).unlink()
    with pytest.raises(UserError, match=f"{FACTS} is missing"):
        osp.load(tmp_path / "fit")
