"""Both ways of asking the pool, averaged: clusters see its kinds, neighbors its fine structure.

Alone each tells OOD images about equally well, and each errs about others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from osp.parts.clusters import Clusters, fit_clusters
from osp.parts.neighbors import Neighbors, fit_neighbors


@dataclass(frozen=True)
class PoolAsked:
    """Clusters and neighbors of a pool, and where their scores lie there."""

    clusters: Clusters
    neighbors: Neighbors
    middle: Tensor
    """Means of both scores over the pool that they were fitted to, 2."""
    spread: Tensor
    """Standard deviations, 2."""

    def score(self, features: Tensor) -> Tensor:
        """((s_c - mean s_c) / std s_c + (s_n - mean s_n) / std s_n) / 2; larger = more OOD."""
        both = torch.stack([self.clusters.score(features), self.neighbors.score(features)], dim=1)
        return ((both - self.middle) / self.spread).mean(dim=1)


def ask_pool(labeled: Tensor, labels: Tensor, pool: Tensor, num_classes: int) -> PoolAsked:
    """Fit to features of labelled images with their classes, and of pool images (there may be none)."""
    clusters, neighbors = fit_clusters(labeled, labels, pool, num_classes), fit_neighbors(labeled, pool)
    seen = pool if len(pool) else labeled
    both = torch.stack([clusters.score(seen), neighbors.score(seen)], dim=1)
    spread = both.std(dim=0, correction=0).clamp(min=1e-6)
    return PoolAsked(clusters, neighbors, both.mean(dim=0), spread)
