"""Networks by name: every one on every image, near misses, and one added in a single file."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import osp.nets
import osp.plugins
from osp import UserError
from osp.engine.train import train
from osp.nets import NetworkSpec, available, build_encoder, build_network, check_name
from osp.recipe import Recipe

TINY = '''
"""One convolution."""

from torch import nn

from osp.nets import NetworkSpec


def build(shape, width):
    return nn.Sequential(nn.Conv2d(shape[0], width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


NETWORK = NetworkSpec("tiny-WIDTH", build, "one convolution", "this test", "MIT", example="tiny-4", cam_layer="1")
'''


@pytest.mark.parametrize("name", ["cnn", "fast", "small", "wrn-10-1", "wrn-16-2"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", [(8, 8), (28, 28), (32, 32), (64, 64), (9, 13)])
def test_every_network_takes_every_image_and_knows_its_feature_size(
    name: str, channels: int, sides: tuple[int, int]
) -> None:
    network = build_network(name, (channels, *sides), 7)
    images = torch.randn(2, channels, *sides)
    features = network.encode(images)
    assert features.shape == (2, network.feature_dim)
    assert build_encoder(name, (channels, *sides)).feature_dim == network.feature_dim
    assert network.classify(features).shape == network(images).shape == (2, 7)


def test_every_file_of_the_folder_is_a_network_of_its_name() -> None:
    helpers = {"batchnorm", "huggingface", "network", "pretrained", "registry"}
    stems = {path.stem for path in Path(osp.nets.__file__).parent.glob("[!_]*.py")} - helpers
    assert {"cnn", "fast", "small", "wrn", "adapter"} <= stems
    assert {name.partition("-")[0] for name in available()} >= stems
    for stem in stems:
        spec = osp.nets.registry._networks.get(stem)
        assert spec is not None
        assert spec.name.partition("-")[0] == stem
        assert all((spec.summary, spec.origin, spec.license))


def test_the_license_is_also_read_as_older_files_spell_it() -> None:
    facts: dict[str, Any] = {"name": "mine", "build": lambda shape: None, "summary": "mine", "origin": "me"}
    assert NetworkSpec(**facts, license="MIT") == NetworkSpec(**facts, licence="MIT")
    assert NetworkSpec(**facts, licence="MIT").license == "MIT"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smal", r"Unknown network 'smal'\. Did you mean 'small'\?"),
        ("wrn28-2", r"Did you mean 'wrn-28-2'\? Any wrn-DEPTH-WIDTH works"),
        ("wrn-28", r"Did you mean 'wrn-28-2'\?"),
        ("wrn-28-٢", "Did you mean"),
        ("wrn", "Choose from: adapter, cnn, fast, small, wrn-28-2"),
        ("small-2", "Unknown network 'small-2'"),
        ("registry", "Unknown network"),
        ("_layers", "Unknown network"),
        ("", "Unknown network ''"),
        ("wrn-28-" + "9" * 5000, "Unknown network"),
    ],
)
def test_an_unknown_name_is_told_with_a_near_miss(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_name(name)
    with pytest.raises(UserError, match=message):
        build_network(name, (3, 32, 32), 5)


def test_inputs_that_a_network_cannot_take_are_refused() -> None:
    with pytest.raises(UserError, match="at least 8x8"):
        build_network("cnn", (1, 7, 8), 3)
    spec = NetworkSpec("large", torch.nn.Flatten, "", "", "", image_size=64, mean=(0.5,) * 3, std=(0.2,) * 3)
    spec.check_shape((3, 64, 64))
    with pytest.raises(UserError, match=r"images of 64x64; these are 32x48\. Set image_size=64"):
        spec.check_shape((3, 48, 32))
    with pytest.raises(UserError, match="takes 3 channels; these images have 1"):
        spec.check_shape((1, 64, 64))


def test_a_network_is_added_by_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.py").write_text(TINY, encoding="utf-8")
    monkeypatch.setattr(osp.nets, "__path__", [*osp.nets.__path__, str(tmp_path)])
    try:
        assert "tiny-WIDTH" in available()
        with pytest.raises(UserError, match="Did you mean 'tiny-4'"):
            check_name("tinny-4")
        run = train(Recipe(scale="demo", method="fixmatch", network="tiny-4", steps=5), tmp_path / "run")
        assert run.result["network"] == "tiny-4"
        assert run.model.features(np.zeros((1, 8, 8), np.uint8)).shape == (1, 16)
    finally:
        sys.modules.pop("osp.nets.tiny", None)


def announce(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("announced", value, "osp.networks")
    monkeypatch.setattr(osp.plugins, "entry_points", lambda group: [point] if group == point.group else [])


ANNOUNCED = NetworkSpec(
    "announced", lambda shape: torch.nn.Flatten(), "pixels as they are", "this test", "MIT", mean=(0.25,), std=(0.5,)
)


def test_an_installed_package_may_announce_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    announce(monkeypatch, f"{__name__}:ANNOUNCED")
    assert "announced" in available()
    assert check_name("announced") is ANNOUNCED
    assert build_network("announced", (1, 8, 8), 3).feature_dim == 64
    run = train(Recipe(scale="demo", method="supervised", network="announced", steps=5), tmp_path / "run")
    black = run.model.features(np.zeros((2, 8, 8), np.uint8))
    np.testing.assert_allclose(black, np.full((2, 64), (0 - 0.25) / 0.5), rtol=1e-6)  # the network's own mean and std


@pytest.mark.parametrize(
    ("value", "message"), [("no_such_module_at_all", "No module named"), ("math", "a constant NETWORK")]
)
def test_a_package_whose_network_cannot_be_loaded_is_named(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(monkeypatch, value)
    with pytest.raises(UserError, match=f"The network 'announced' cannot be loaded: .*{message}"):
        check_name("announced")
    assert check_name("cnn").name == "cnn"  # the others still work
