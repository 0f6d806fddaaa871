"""The score of OpenMatch and SSB: does the class predicted for an image claim it?

    1 - o_ŷ with the one-vs-all head o (osp.parts.one_vs_all) and ŷ = argmax_c f_c

Reference: Saito et al., OpenMatch, NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from osp.parts.one_vs_all import OneVsAllHead
from osp.scores.base import Score


class OneVsAllScore(Score):
    name = "one-vs-all"
    summary = "1 - o_ŷ: the one-vs-all head of OpenMatch and SSB"
    own = True

    def __init__(self, feature_dim: int, num_classes: int, hidden: Sequence[int] = ()) -> None:
        super().__init__(feature_dim, num_classes)
        self.made_with = {"hidden": list(hidden)}
        self.head = OneVsAllHead(feature_dim, num_classes, tuple(hidden))

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return torch.sigmoid(-self.head(features).gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1))
