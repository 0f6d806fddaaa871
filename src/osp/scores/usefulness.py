"""The score of DS3L: a small net that learned, from its predictions, how much an unlabeled image helps.

    1 - v_φ(p),  v_φ from K inputs over one hidden layer to a sigmoid

Reference: Guo et al., Safe Deep Semi-Supervised Learning for Unseen-Class Unlabeled Data, ICML 2020, whose weights were
not meant as a score; that it is one is our reading.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.scores.base import Score


class UsefulnessScore(Score):
    name = "usefulness"
    summary = "1 - v(p): the weight net of DS3L"
    own = True

    def __init__(self, feature_dim: int, num_classes: int, hidden: int = 100) -> None:
        super().__init__(feature_dim, num_classes)
        self.made_with = {"hidden": hidden}
        self.net = nn.Sequential(nn.Linear(num_classes, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def weigh(self, probabilities: Tensor) -> Tensor:
        """v_φ, in single precision."""
        with torch.autocast(probabilities.device.type, enabled=False):
            weights: Tensor = self.net(probabilities)
            return weights[:, 0]

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return 1 - self.weigh(logits.softmax(dim=1))
