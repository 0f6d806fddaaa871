"""The field's MNIST network (DS3L, Safe-Student): two 3x3 convolutions of 16 and 32 channels, each pooled by two."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.nets.registry import NetworkSpec, Shape


class TwoLayerCNN(nn.Module):
    """28x28 images give 1568 features.

    The dropout that the publications put before the classifier belongs to the classifier here (`feature_dropout`):
    features for matching and pruning are taken before it.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.rectified = nn.ReLU()  # a layer of its own for Grad-CAM, which weighs maps that are nowhere negative
        halved = [((side - 1) // 2 + 1 - 1) // 2 + 1 for side in (height, width)]
        self.feature_dim = 32 * halved[0] * halved[1]

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.pool(self.conv1(images)))
        maps: Tensor = self.rectified(self.pool(self.conv2(hidden)))
        return maps.flatten(1)


NETWORK = NetworkSpec(
    name="cnn",
    build=TwoLayerCNN,
    summary="two 3x3 convolutions of 16 and 32 channels, each pooled by two; dropout 0.5 before the classifier",
    origin="Guo et al., Safe deep semi-supervised learning for unseen-class unlabeled data (DS3L), ICML 2020",
    license="MIT, as osp; no weights",
    feature_dropout=0.5,
    cam_layer="rectified",
)
