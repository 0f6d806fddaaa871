"""From `osp fit --backbone hf:FOLDER` to predictions and an exported file, and what is said when the folder is gone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.small_backbone import write_photo
from helpers.tiny_transformers import save
from osp import cli
from osp.data.decode import decode
from osp.errors import UserError
from osp.models.photo import load_model
from osp.nets.huggingface import huggingface
from osp.photos.estimator import RobustClassifier
from osp.photos.features import compute

pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")


def osp(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["osp", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_fit_predict_and_export_with_a_network_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    net, run = save(tmp_path / "net", "dinov2"), tmp_path / "run"
    for number, color in enumerate(("red", "blue")):
        for seed in range(6):
            noise = np.random.default_rng(10 * number + seed).integers(0, 90, (40, 40, 3), dtype=np.uint8)
            noise[..., 2 * number] += 150
            (tmp_path / "sorted" / color).mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise).save(tmp_path / "sorted" / color / f"{seed}.png")
    assert osp(monkeypatch, "fit", tmp_path / "sorted", "--out", run, "--backbone", f"hf:{net}", "--no-page") == 0
    saved = json.loads((run / "photos.json").read_text())
    assert saved["backbone"] == {"name": f"hf:{net}", "checksum": huggingface(f"hf:{net}").checksum}
    assert "apache-2.0" in saved["license"]
    photo = tmp_path / "sorted" / "red" / "0.png"
    capsys.readouterr()
    assert osp(monkeypatch, "predict", run, photo, "--format", "jsonl") == 0
    said = json.loads(capsys.readouterr().out)
    assert osp(monkeypatch, "export", run, "--onnx", tmp_path / "model.onnx") == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    pixels = decode(str(photo), 28).transpose(1, 2, 0)[None]
    chances, scores = session.run(["probabilities", "ood_score"], {"images": np.ascontiguousarray(pixels)})
    assert chances[0] == pytest.approx([said["probabilities"][name] for name in ("blue", "red")], abs=1e-3)
    assert scores[0] == pytest.approx(said["ood_score"], abs=1e-3)
    assert "apache-2.0" in session.get_modelmeta().custom_metadata_map["license"]

    moved = net.rename(tmp_path / "elsewhere")
    assert osp(monkeypatch, "predict", run, photo) == 2
    told = capsys.readouterr().err
    assert f"looks at photos with hf:{net}" in told
    assert "no such folder" in told
    assert load_model(run, huggingface(f"hf:{moved}")).class_names == ("blue", "red")  # the same weights
    save(net, "dinov2", seed=1)
    with pytest.raises(UserError, match="was fitted on features of"):
        load_model(run)


def test_features_are_kept_by_the_weights_not_by_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    photo = write_photo(tmp_path / "a.png", 0)
    first = compute([photo], huggingface(f"hf:{save(tmp_path / 'net')}")).rows()
    other = compute([photo], huggingface(f"hf:{save(tmp_path / 'other', seed=1)}")).rows()
    assert np.abs(first - other).max() > 0.01
    shutil.copytree(tmp_path / "net", tmp_path / "copy")
    done: list[int] = []
    again = compute([photo], huggingface(f"hf:{tmp_path / 'copy'}"), progress=lambda *given: done.append(given[0]))
    assert (again.rows() == first).all()
    assert not done  # nothing was computed anew


def test_the_estimator_takes_and_remembers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    made = RobustClassifier(backbone=f"hf:{save(tmp_path / 'net')}").fit(images, [0, 1] * 4)
    made.save(tmp_path / "saved")
    loaded = RobustClassifier.load(tmp_path / "saved")
    assert loaded.backbone == f"hf:{tmp_path / 'net'}"
    assert (loaded.predict_proba(images) == made.predict_proba(images)).all()
    with pytest.raises(UserError, match="no such folder"):
        RobustClassifier(backbone="hf:./nothing").fit(images, [0, 1] * 4)


def test_no_hub_is_asked_for_a_backbone_that_only_an_earlier_fit_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    for color, number in (("red", 0), ("blue", 2)):
        (tmp_path / "sorted" / color).mkdir(parents=True)
        for seed in range(3):
            write_photo(tmp_path / "sorted" / color / f"{seed}.png", 10 * number + seed)
    net = save(tmp_path / "net", "dinov2")
    words = ("fit", tmp_path / "sorted", "--no-page", "--out")
    assert osp(monkeypatch, *words, tmp_path / "first", "--backbone", f"hf:{net}") == 0
    path = tmp_path / "first" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "backbone": "hf:attacker/beacon"}))
    asked: list[object] = []

    def download(*given: object, **more: object) -> str:
        asked.append(more["local_files_only"])
        raise OSError("nothing there")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert osp(monkeypatch, *words, tmp_path / "second", "--from", tmp_path / "first") == 2
    assert "--from looks at photos with hf:attacker/beacon. It is not on this machine" in capsys.readouterr().err
    assert asked == [True]
    assert osp(monkeypatch, *words, tmp_path / "second", "--from", tmp_path / "first", "--backbone", "hf:x/y") == 2
    assert asked == [True, False]
