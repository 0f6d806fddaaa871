"""The score of MTC: a head that learned to tell labeled images from others, with labels of its own making.

    1 - d(x) = sigmoid(-h(z))

Reference: Yu et al., Multi-Task Curriculum Framework for Open-Set Semi-Supervised Learning, ECCV 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.scores.base import Score


class DomainScore(Score):
    name = "domain"
    summary = "sigmoid(-h(z)): the domain head of MTC"
    own = True

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.head = nn.Linear(feature_dim, 1)

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return torch.sigmoid(-self.head(features)[:, 0])
