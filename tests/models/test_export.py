"""An exported model says of images what the model says, and is refused in a sentence where it cannot be made."""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import osp
from helpers.runs import run as train
from helpers.small_backbone import small_backbone
from osp import cli
from osp.data.decode import decode
from osp.errors import UserError
from osp.models import load
from osp.models.export import export
from osp.models.model import Answer
from osp.models.photo import BACKBONES, PhotoModel
from osp.models.trained import Predictor
from osp.nets import build_network
from osp.nets.pretrained import LICENSE, efficientnet_lite0
from osp.photos.estimator import RobustClassifier
from osp.photos.instant import fit_instant
from osp.scores.base import Score
from osp.scores.registry import build, known

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def answers(path: Path, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    probabilities, scores = session(path).run(["probabilities", "ood_score"], {"images": images})
    return probabilities, scores


def predictor(kept: dict[str, Score], shape: tuple[int, int, int] = (3, 32, 32)) -> Predictor:
    """An untrained network with these scores."""
    meta = {
        "network": "cnn",
        "shape": shape,
        "class_names": ["cat", "dög", "bird"],
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.25, 0.3],
        "score": next(iter(kept)),
        "scores": {name: {"threshold": 0.25} for name in kept},
    }
    return Predictor(network(), kept, meta)


def network() -> Any:
    torch.manual_seed(0)
    return build_network("cnn", (3, 32, 32), 3).eval()


def photo_model(classes: int = 3) -> PhotoModel:
    generator = np.random.default_rng(0)
    labels = np.arange(21) % classes
    rows = (np.eye(48)[labels] + generator.normal(size=(21, 48)) * 0.1).astype(np.float32)
    pile = generator.normal(size=(60, 48)).astype(np.float32) * 0.3
    return PhotoModel(fit_instant(rows, labels, pile, ["a", "b", "c"][:classes]), small_backbone())


class Together(nn.Module):
    """All scores of the house in one module: tracing takes its time."""

    def __init__(self, net: Any, scores: dict[str, Score]) -> None:
        super().__init__()
        self.net, self.scores = net, nn.ModuleList(scores.values())

    def forward(self, images: Tensor) -> list[Tensor]:
        features = self.net.encoder(images.permute(0, 3, 1, 2).float() / 255)
        logits = self.net.classifier(features)
        return [score(features, logits, self.net.classifier) for score in self.scores]


def test_every_score_can_be_said_in_onnx_for_any_number_of_images() -> None:
    net = network()
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8))
    scores: dict[str, Score] = {}
    with torch.no_grad():
        features = net.encoder(images.permute(0, 3, 1, 2).float() / 255)
        for name in sorted(known()):
            scores[name] = build(name, net.feature_dim, 3)
            scores[name].fit(features, net.classifier(features), torch.arange(24) % 3, net.classifier)
        module = Together(net, scores).eval().requires_grad_(False)
        traced = torch.export.export(module, (images[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
        made = torch.onnx.export(traced, input_names=["images"], dynamo=True, verbose=False)
        assert made is not None
        ran = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
        for part in (images[:1], images[:7]):
            for name, wanted, found in zip(scores, module(part), ran.run(None, {"images": part.numpy()}), strict=True):
                np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-3, atol=2e-3, err_msg=name)


def test_a_run_on_digits_answers_alike_from_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = osp.Recipe(method="fixmatch", scale="demo", steps=30, eval_every=30, options={"mu": 2})
    run = train(recipe, tmp_path / "run")
    target, program = tmp_path / "model.onnx", tmp_path / "model.pt2"
    arguments = ["export", str(run.path), "--onnx", str(target), "--torch", str(program)]
    assert command(arguments, monkeypatch) == 0
    assert f"| accuracy (%) | {run.result['accuracy']:.1f} |" in target.with_name("model.onnx.md").read_text("utf-8")
    test = osp.data.load("digits")[1]
    assert test is not None
    images = np.ascontiguousarray(test.images[:200].transpose(0, 2, 3, 1))
    wanted = osp.load(run.path)(images)
    for count in (1, 200):
        probabilities, scores = answers(target, images[:count])
        np.testing.assert_allclose(probabilities, wanted.probabilities[:count], atol=1e-4)
        np.testing.assert_allclose(scores, wanted.ood_score[:count], atol=1e-4)
    extra = {"osp.json": ""}
    loaded = torch.export.load(io.BytesIO(program.read_bytes()), extra_files=extra).module()
    probabilities, scores = (out.numpy() for out in loaded(torch.from_numpy(images[:5])))
    np.testing.assert_allclose(probabilities, wanted.probabilities[:5], atol=1e-4)
    np.testing.assert_allclose(scores, wanted.ood_score[:5], atol=1e-4)
    facts = session(target).get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == list(run.model.class_names)
    assert float(facts["threshold"]) == run.model.threshold
    assert facts == json.loads(extra["osp.json"])
    assert session(target).get_inputs()[0].shape == ["batch", 8, 8, 1]
    before = target.read_bytes()
    assert command(arguments, monkeypatch) == 2  # never overwrites
    assert target.read_bytes() == before


def test_a_photo_model_answers_alike(tmp_path: Path) -> None:
    model = photo_model()
    assert model.instant.neighbors
    facts = export(model, tmp_path / "model.onnx")
    images = np.random.default_rng(1).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    features = model.backbone.features(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).numpy()
    probabilities, scores = answers(tmp_path / "model.onnx", images)
    np.testing.assert_allclose(probabilities, model.instant.predict_proba(features), atol=1e-4)
    np.testing.assert_allclose(scores, model.instant.ood_score(features), atol=1e-4)
    assert float(facts["threshold"]) == model.instant.threshold()
    assert facts["license"] == model.backbone.license


@pytest.mark.slow
def test_an_answer_without_a_pile_is_a_torch_program_and_a_saved_estimator_has_a_card_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)
    RobustClassifier("tiles").fit(images, ["a", "b"] * 6).save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert command(["export", "model", "--torch", "model.pt2"], monkeypatch) == 0
    pixels = generator.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    probabilities, scores = torch.export.load(tmp_path / "model.pt2").module()(torch.from_numpy(pixels))
    said = load(tmp_path / "model")(pixels)
    np.testing.assert_allclose(probabilities.numpy(), said.probabilities, atol=1e-4)
    np.testing.assert_allclose(scores.numpy(), said.ood_score, atol=1e-4)
    assert "Nothing was measured." in (tmp_path / "model.pt2.md").read_text()


def test_real_photographs_through_the_pretrained_network(tmp_path: Path, real_data: Callable[..., Path]) -> None:
    folders = sorted(path for path in (real_data("photos") / "photos").iterdir() if path.is_dir())
    files = [sorted(file for file in folder.rglob("*") if file.is_file())[:14] for folder in folders[:3]]
    backbone = efficientnet_lite0()
    pixels = np.stack([decode(str(file), backbone.size) for several in files for file in several])
    place = np.arange(len(pixels)) % 14
    images = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    rows = backbone.features(pixels).numpy()
    labeled = (place < 4) & (np.arange(len(pixels)) < 28)
    names = [folder.name for folder in folders[:2]]
    model = PhotoModel(fit_instant(rows[labeled], np.repeat([0, 1], 4), rows[~labeled], names), backbone)
    facts = export(model, tmp_path / "model.onnx")
    assert facts["license"] == LICENSE
    probabilities, scores = answers(tmp_path / "model.onnx", images)
    np.testing.assert_allclose(probabilities, model.instant.predict_proba(rows), atol=2e-3)
    np.testing.assert_allclose(scores, model.instant.ood_score(rows), atol=1e-3)
    model.save(tmp_path / "saved")
    assert isinstance(load(tmp_path / "saved"), PhotoModel)


@pytest.mark.slow
def test_the_example_in_the_docs_says_what_osp_predict_says(
    tmp_path: Path, real_data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = sorted(path for path in (real_data("photos") / "photos").iterdir() if path.is_dir())
    files = [sorted(file for file in folder.rglob("*") if file.is_file())[:14] for folder in folders[:3]]
    backbone = efficientnet_lite0()
    rows = backbone.features(np.stack([decode(str(file), 224) for several in files for file in several])).numpy()
    labeled = np.arange(len(rows)) % 14 < 4
    labeled[28:] = False
    names = [folder.name for folder in folders[:2]]
    model = PhotoModel(fit_instant(rows[labeled], np.repeat([0, 1], 4), rows[~labeled], names), backbone)
    facts = export(model, tmp_path / "model.onnx")
    assert "draft(None, (448, 448))" in facts["preprocessing"]
    assert session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map == facts
    photos = [*files[0][4:7], *files[2][:3], *_odd_forms(files[1][5], tmp_path)]

    text = (Path(__file__).parents[2] / "docs" / "photos-more.md").read_text("utf-8")
    section = text.partition("## Using an exported model")[2].partition("\n## ")[0]
    code = re.search(r"\n    import json\n(?:    .*\n|\n)+", section)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    decisions = []
    for photo, said in zip(photos, model.predict_files(photos), strict=True):
        found: dict[str, Any] = {}
        exec(textwrap.dedent(code[0]).replace('"new.jpg"', repr(str(photo))), found)
        wanted = said
        assert not wanted.reason
        assert found["label"] == wanted.label
        assert found["probability"] == pytest.approx(wanted.probability, abs=2e-3)
        assert found["scores"][0] == pytest.approx(wanted.ood_score, abs=2e-3)
        assert bool(found["unknown"]) == (not wanted.inside)
        decisions.append(wanted.inside)
        if photo in photos[:6]:
            assert np.array_equal(found["photo"], decode(str(photo), 224).transpose(1, 2, 0))
    assert set(decisions) == {True, False}


def _odd_forms(photo: Path, folder: Path) -> list[Path]:
    """A photograph large, lying on its side, on a transparent ground, with a palette, and in grey."""
    with Image.open(photo) as opened:
        large = opened.convert("RGB").resize((1501, 1130))
    turned = Image.Exif()
    turned[0x0112] = 6
    made = {name: folder / name for name in ("large.jpg", "turned.jpg", "clear.png", "palette.gif", "grey.png")}
    large.save(made["large.jpg"], quality=90)
    large.save(made["turned.jpg"], exif=turned)
    small = large.resize((301, 240))
    clear = small.copy()
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    clear.save(made["clear.png"])
    small.quantize(64).save(made["palette.gif"])
    small.convert("L").save(made["grey.png"])
    return list(made.values())


class Wayward(Score):
    """Nothing that a graph could hold: the values decide what is computed."""

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return features.sum(dim=1) if bool(features.sum() > 0) else features.amax(dim=1)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    model = predictor({"wayward": Wayward(net.feature_dim, 3), "softmax": build("softmax", net.feature_dim, 3)})
    with pytest.raises(UserError, match="'wayward' cannot be exported"):
        export(model, program=tmp_path / "model.pt2")
    with pytest.raises(UserError, match=r"no OOD score 'sofmax'\. Did you mean 'softmax'"):
        export(model, program=tmp_path / "model.pt2", score="sofmax")
    with pytest.raises(UserError, match="one OOD score"):
        export(photo_model(), program=tmp_path / "model.pt2", score="energy")
    with pytest.raises(UserError, match="no folder"):
        export(model, program=tmp_path / "nowhere" / "model.pt2")
    with pytest.raises(UserError, match="cannot be both"):
        export(model, tmp_path / "model", tmp_path / "model")
    with pytest.raises(UserError, match="nothing to export to"):
        export(model)
    assert not list(tmp_path.iterdir())
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "plan.yaml").touch()
    with pytest.raises(UserError, match="is not finished"):
        load(tmp_path / "begun")
    rows = np.random.default_rng(0).normal(size=(8, 3))
    RobustClassifier().fit(rows, [0, 1] * 4).save(tmp_path / "plain")
    with pytest.raises(UserError, match="plain features"):
        load(tmp_path / "plain")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs the package onnxscript\. Run: .*pip install .*\[export\]'"):
        export(model, tmp_path / "model.onnx")


def test_a_file_that_differs_from_the_model_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    model = predictor({"softmax": build("softmax", net.feature_dim, 3)})
    right = Predictor.__call__

    def wrong(self: Predictor, images: Any, score: str | None = None) -> Answer:
        said = right(self, images, score)
        return replace(said, ood_score=said.ood_score + 0.1)

    monkeypatch.setattr(Predictor, "__call__", wrong)
    with pytest.raises(UserError, match="differs from the model"):
        export(model, program=tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", str(tmp_path)], monkeypatch) == 2
    assert "--onnx model.onnx" in capsys.readouterr().err
    assert command(["export", str(tmp_path), "--torch", str(tmp_path / "model.pt2")], monkeypatch) == 2
    assert "is no run folder" in capsys.readouterr().err


def command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The command in this process; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["osp", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)
