"""The score of IOMatch: the probability of the class that stands for all others.

    q_{K+1} with q = softmax(C(g(z))), C a classifier of K + 1 classes on a projection g of the features

Reference: Li et al., IOMatch, ICCV 2023. The one-vs-all detector that C learns from sees the same projection.
"""

from __future__ import annotations

from torch import Tensor, nn

from osp.parts.one_vs_all import OneVsAllHead, linear_layers
from osp.scores.base import Score


class OpenSetScore(Score):
    name = "open-set"
    summary = "q_{K+1}: the open-set classifier of IOMatch"
    own = True

    def __init__(self, feature_dim: int, num_classes: int, width: int = 128) -> None:
        super().__init__(feature_dim, num_classes)
        self.made_with = {"width": width}
        self.projection = nn.Sequential(nn.Linear(feature_dim, width), nn.ReLU(), nn.Linear(width, width))
        self.detector = OneVsAllHead(width, num_classes)
        self.open_classifier = linear_layers([width, num_classes + 1])

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        open_logits: Tensor = self.open_classifier(self.projection(features))
        return open_logits.softmax(dim=1)[:, -1]
