"""Do unknown kinds in the pool claim the image, or do the classes?

    mean over starts of  ln Σ_m exp(κ z·f_m) - ln Σ_c exp(κ z·w_c)      centers w of the classes, f of unknown kinds

Asks the pool: the centers are soft clusters of it, K of them held by the labels (`osp.parts.clusters`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.parts.clusters import Clusters, fit_clusters
from osp.scores.base import PoolScore


class ClusterScore(PoolScore):
    name = "clusters"
    summary = "ln Σ_m exp κz·f_m - ln Σ_c exp κz·w_c: clusters of the pool against the classes"
    mean: Tensor
    basis: Tensor
    known: Tensor
    free: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.register_buffer("mean", torch.zeros(feature_dim))
        self.register_buffer("basis", torch.eye(feature_dim))
        self.register_buffer("known", torch.full((1, num_classes, feature_dim), torch.nan))
        self.register_buffer("free", torch.zeros(1, 0, feature_dim))

    @property
    def part(self) -> Clusters:
        return Clusters(self.mean, self.basis, self.known, self.free)

    def take(self, part: Clusters) -> None:
        device = self.mean.device
        self.mean, self.basis = part.mean.to(device), part.basis.to(device)
        self.known, self.free = part.known.to(device), part.free.to(device)

    def fit_pool(self, features: Tensor, labels: Tensor, pool: Tensor) -> None:
        self.take(fit_clusters(features, labels, pool, self.num_classes))

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return self.part.score(features)
