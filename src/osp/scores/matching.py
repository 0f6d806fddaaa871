"""The score of T2T and OSP: does the feature go with the class predicted for it?

    1 - S(x) = sigmoid(-M(z, ŷ)) with the matching head M and ŷ = argmax_c f_c

Reference: Huang et al., Trash to Treasure, ICCV 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.parts.matching import MatchingHead
from osp.scores.base import Score


class MatchingScore(Score):
    name = "matching"
    summary = "sigmoid(-M(z, ŷ)): the matching head of T2T and OSP"
    own = True

    def __init__(self, feature_dim: int, num_classes: int, width: int = 128) -> None:
        super().__init__(feature_dim, num_classes)
        self.made_with = {"width": width}
        self.head = MatchingHead(feature_dim, num_classes, width)

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return torch.sigmoid(-self.head(features, logits.argmax(dim=1)))
