"""How far the nearest images of labels and pool are from a label, along chains of neighbors.

    mean of s over the ten nearest nodes of the image; s, the nodes: `osp.parts.neighbors`

Asks the pool: a crowd of OOD images is seen as such, because no chain of neighbors leads from it to a label.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.parts.neighbors import Neighbors, fit_neighbors
from osp.parts.pool_score import AT_ONCE
from osp.scores.base import PoolScore

MOST_LABELED = 8000
"""Labeled images among the nodes, evenly spread: bounds the graph's memory and the size of a saved model."""


class NeighborScore(PoolScore):
    name = "neighbors"
    summary = "distance to the labels, averaged along neighbors in the pool"
    basis: Tensor
    nodes: Tensor
    values: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.register_buffer("basis", torch.eye(feature_dim, 1))
        self.register_buffer("nodes", torch.zeros(1, 1))
        self.register_buffer("values", torch.full((1,), torch.nan))

    @property
    def part(self) -> Neighbors:
        return Neighbors(self.basis, self.nodes, self.values)

    def take(self, part: Neighbors) -> None:
        device = self.values.device
        self.basis, self.nodes, self.values = (each.to(device) for each in (part.basis, part.nodes, part.values))

    def fit_pool(self, features: Tensor, labels: Tensor, pool: Tensor) -> None:
        self.take(fit_neighbors(features[spread_rows(features)], pool, at_once=AT_ONCE))

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return self.part.score(features)


def spread_rows(features: Tensor) -> Tensor:
    """All rows, or `MOST_LABELED` of them, evenly spread."""
    return torch.linspace(0, len(features) - 1, min(len(features), MOST_LABELED), device=features.device).long()
