"""Backbones of transformers: the family's own features, of images prepared as their settings say; only data is read."""

from __future__ import annotations

import json
import os
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.tiny_transformers import FAMILIES, SIZES, build, save
from osp.errors import UserError
from osp.models.gradcam import weighed
from osp.nets.huggingface import huggingface, preprocessing
from torture.trial import trial

pytest.importorskip("transformers")


def images(size: int, count: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_features_are_those_that_the_family_is_judged_by(family: str, tmp_path: Path) -> None:
    backbone = huggingface(f"hf:{save(tmp_path / 'net', family)}")
    pixels = images(backbone.size)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    given, model = (pixels / 255 - mean) / std, build(family)
    with torch.no_grad():
        if family == "siglip":
            expected = model.vision_model(pixel_values=given).pooler_output
        elif family == "vit":
            expected = model(given).last_hidden_state[:, 0]  # its pooler is left untrained in most checkpoints
        else:
            expected = model(given).pooler_output
    assert backbone.size == SIZES[family]
    assert backbone.feature_dim == 32
    torch.testing.assert_close(backbone.features(pixels), expected, atol=1e-5, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in backbone.network.parameters())
    assert "apache-2.0" in backbone.license


@pytest.mark.parametrize("family", FAMILIES)
def test_grad_cam_finds_the_corner_that_alone_speaks_for_the_target(family: str, tmp_path: Path) -> None:
    backbone = huggingface(f"hf:{save(tmp_path / 'net', family)}")
    features, places = backbone.features_with_places(images(backbone.size))
    torch.testing.assert_close(features.detach(), backbone.features(images(backbone.size)), atol=1e-5, rtol=1e-4)
    (gradient,) = torch.autograd.grad(features[:, :3].sum(), places, retain_graph=True)
    seen = weighed(places, features[:, :3].sum(dim=1), (backbone.size,) * 2)
    assert seen.shape == (3, backbone.size, backbone.size)
    assert gradient.abs().sum() > 0
    tokens = torch.zeros(1, 1 + 16, 2)  # a class token, then four rows of four
    tokens[0, 1 + 3, 0] = 1.0
    tokens.requires_grad_()
    corner = weighed(tokens, tokens.sum(dim=(1, 2)), (8, 8))[0]
    assert corner[0, 7] == 1.0
    assert corner[4:].max() == 0.0


def test_identity_is_that_of_weights_and_settings_not_of_the_place(tmp_path: Path) -> None:
    first = huggingface(f"hf:{save(tmp_path / 'a')}")
    again = huggingface(f"hf:{save(tmp_path / 'elsewhere')}")
    other = huggingface(f"hf:{save(tmp_path / 'b', seed=1)}")
    assert first.checksum == again.checksum != other.checksum
    assert first.name == f"hf:{tmp_path / 'a'}"
    config = tmp_path / "a" / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "gelu"', '"hidden_act": "relu"'))
    assert huggingface(f"hf:{tmp_path / 'a'}").checksum != first.checksum


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"size": 64, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, (64, 0.5, 0.5)),
        ({"size": {"shortest_edge": 64}, "do_normalize": False}, (64, 0.0, 1.0)),
        ({"size": 64, "rescale_factor": 2 / 255, "image_mean": [1] * 3, "image_std": [1] * 3}, (64, 0.5, 0.5)),
        ({"size": 99, "crop_size": 64, "do_center_crop": False, "do_normalize": False}, (99, 0.0, 1.0)),
    ],
)
def test_settings_for_images_are_read(settings: dict[str, Any], wanted: tuple[int, float, float]) -> None:
    size, mean, std = preprocessing(settings, Path("x"))
    assert (size, *mean, *std) == pytest.approx((wanted[0], *[wanted[1]] * 3, *[wanted[2]] * 3))


def changed(folder: Path, name: str, **entries: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["OSP_TEST_MARK"],)


def sharded(folder: Path, place: dict[str, str], seed: int = 0) -> Path:
    """A network in two files, which the index names as is said in `place`."""
    net = save(folder, seed=seed)
    tensors = load_file(net / "model.safetensors")
    (net / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, half in halves.items():
        save_file({name: tensors[name] for name in half}, net / file, {"format": "pt"})
    named = {name: place.get(file, file) for file, half in halves.items() for name in half}
    (net / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": named}))
    return net


def test_the_checksum_is_that_of_the_weights_that_are_loaded(tmp_path: Path) -> None:
    whole, parts = huggingface(f"hf:{save(tmp_path / 'whole')}"), huggingface(f"hf:{sharded(tmp_path / 'parts', {})}")
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole.network(image), parts.network(image))
    assert len({whole.checksum, parts.checksum, huggingface(f"hf:{sharded(tmp_path / 'b', {}, seed=1)}").checksum}) == 3
    (tmp_path / "whole" / "beside.safetensors").write_bytes(b"not loaded")
    assert huggingface(f"hf:{tmp_path / 'whole'}").checksum == whole.checksum
    index = tmp_path / "parts" / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("weight_map", "other"))
    with pytest.raises(UserError, match="no weights as safetensors"):
        huggingface(f"hf:{tmp_path / 'parts'}")


@pytest.mark.parametrize("place", ["../other/model.safetensors", "one.bin", "gone.safetensors"])
def test_weights_lie_in_their_folder_and_are_safetensors(place: str, tmp_path: Path) -> None:
    save(tmp_path / "other", seed=1)
    net = sharded(tmp_path / "net", {"one.safetensors": place})
    (net / "one.bin").write_bytes((net / "one.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"outside of its folder|no weights as safetensors"):
        huggingface(f"hf:{net}")


@pytest.mark.parametrize(
    "entries",
    [
        {"hidden_size": 8192},
        {"intermediate_size": 10**7},
        {"num_hidden_layers": 10**9},
        {"num_labels": 10**9},
        {"image_size": 10**6},
        {"patch_size": 1, "image_size": 2048},
        {"depths": [10**9], "hidden_sizes": [8]},
    ],
)
def test_settings_that_ask_for_more_than_the_weights_cost_a_sentence(entries: dict[str, Any], tmp_path: Path) -> None:
    net = save(tmp_path / "net", "convnext" if "depths" in entries else "vit")
    changed(net, "config.json", **entries)
    if "patch_size" in entries:
        changed(net, "preprocessor_config.json", size=2048)
    outcome = trial(lambda: huggingface(f"hf:{net}"), seconds=120, megabytes=500)
    assert outcome.kind == ("result" if "num_labels" in entries else "refused"), outcome


def test_no_kernel_is_loaded_by_its_name(tmp_path: Path) -> None:
    net = save(tmp_path / "net")
    changed(net, "config.json", attn_implementation="attacker/kernel", _attn_implementation="attacker/kernel")
    model: Any = huggingface(f"hf:{net}").network.model
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda net: (net / "config.json").unlink(), r"config\.json is missing"),
        (lambda net: (net / "config.json").write_text("["), r"config\.json cannot be read"),
        (lambda net: changed(net, "config.json", model_type="bert"), "type 'bert'.*dinov2"),
        (lambda net: changed(net, "config.json", num_hidden_layers=3), "do not fit"),
        (lambda net: changed(net, "config.json", image_size=16), "do not fit|cannot be loaded"),
        (lambda net: (net / "preprocessor_config.json").unlink(), r"preprocessor_config\.json is missing"),
        (lambda net: changed(net, "preprocessor_config.json", size={"height": 32, "width": 64}), "a square is needed"),
        (lambda net: changed(net, "preprocessor_config.json", image_std=[0, 1, 1]), "does not say how"),
        (lambda net: changed(net, "preprocessor_config.json", size=48), "does not take images of 48x48"),
        (lambda net: (net / "model.safetensors").write_bytes(b"x" * 100), "cannot be loaded"),
        (lambda net: (net / "model.safetensors").rename(net / "pytorch_model.bin"), "no weights as safetensors"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(damage: Any, words: str, tmp_path: Path) -> None:
    net = save(tmp_path / "net")
    damage(net)
    with pytest.raises(UserError, match=words):
        huggingface(f"hf:{net}")


def test_neither_a_pickle_nor_code_beside_the_weights_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("OSP_TEST_MARK", str(mark))
    net = save(tmp_path / "net")
    (net / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    (net / "modeling_own.py").write_text(f"import os; os.mkdir({str(mark)!r})\nclass Own: ...\n")
    changed(net, "config.json", auto_map={"AutoModel": "modeling_own.Own", "AutoConfig": "modeling_own.Own"})
    assert huggingface(f"hf:{net}").feature_dim == 32
    (net / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights as safetensors"):
        huggingface(f"hf:{net}")
    assert not mark.exists()


def test_a_name_on_the_hub_is_found_in_its_cache_and_never_fetched_because_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    kept = tmp_path / "hub" / "models--somebody--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    save(kept / "snapshots" / ("0" * 40))
    backbone = huggingface("hf:somebody/tiny", fetch=False)
    assert backbone.name == "hf:somebody/tiny"
    with pytest.raises(UserError, match=r"not on this machine.*hf download somebody/other"):
        huggingface("hf:somebody/other", fetch=False)
    with pytest.raises(UserError, match="cannot be fetched from the hub"):
        huggingface("hf:somebody/other")
    for wrong in ("hf:", "hf:./nothing", f"hf:{tmp_path / 'gone'}", "hf:a/b/c", "hf:~/no-such-folder"):
        with pytest.raises(UserError, match="no such folder"):
            huggingface(wrong)
