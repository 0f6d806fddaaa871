"""What clusters of the pool and chains of neighbors in it say together: the score that is reported by default.

mean of `clusters` and `neighbors`, each in standard deviations over the pool       osp.parts.pool_score
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.parts.pool_score import PoolAsked, ask_pool
from osp.scores.base import PoolScore
from osp.scores.clusters import ClusterScore
from osp.scores.neighbors import NeighborScore, spread_rows


class BothScore(PoolScore):
    name = "pool"
    summary = "mean of `clusters` and `neighbors`, each in standard deviations over the pool"
    middle: Tensor
    spread: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.clusters = ClusterScore(feature_dim, num_classes)
        self.neighbors = NeighborScore(feature_dim, num_classes)
        self.register_buffer("middle", torch.zeros(3))
        self.register_buffer("spread", torch.ones(3))

    @property
    def part(self) -> PoolAsked:
        return PoolAsked(self.clusters.part, self.neighbors.part, self.middle, self.spread)

    def take(self, part: PoolAsked) -> None:
        self.clusters.take(part.clusters)
        self.neighbors.take(part.neighbors)
        self.middle, self.spread = part.middle.to(self.middle), part.spread.to(self.spread)

    def fit_pool(self, features: Tensor, labels: Tensor, pool: Tensor) -> None:
        rows = spread_rows(features)
        self.take(ask_pool(features[rows], labels[rows], pool, self.num_classes))

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return self.part.score(features)
