"""Both ways of asking the pool, averaged: clusters see its kinds, neighbors its fine structure.

Alone each tells OOD images about equally well, and each errs about others. Neither knows what the pool has never seen:
an image farther from everything than the pool is from itself is OOD by that alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from osp.parts.clusters import Clusters, fit_clusters
from osp.parts.neighbors import Neighbors, fit_neighbors

USUAL = 0.99
"""Share of the pool that is not novel."""
LEAST_SPREAD = 1e-3
"""Of a score that hardly varies: dividing by less would only show rounding."""
AT_ONCE = 256
"""Images that are compared with all others at a time: bounds the memory."""


@dataclass(frozen=True)
class PoolAsked:
    """Clusters and neighbors of a pool, and where their scores lie there."""

    clusters: Clusters
    neighbors: Neighbors
    middle: Tensor
    """Means of both scores over the pool that they were fitted to, and what 99 % of its novelties do not exceed, 3."""
    spread: Tensor
    """Standard deviations of the three."""

    def score(self, features: Tensor) -> Tensor:
        """(ŝ_c + ŝ_n) / 2 + max(n̂, 0); larger = more OOD.

        ŝ = (s - mean) / std of both scores, n̂ = (n - 99th percentile) / std of the distance n to the k-th nearest image
        of labels and pool.
        """
        by_neighbors, novelty = self.neighbors.score_and_novelty(features)
        columns = torch.stack([self.clusters.score(features), by_neighbors, novelty], dim=1)
        scaled = (columns - self.middle) / self.spread
        return scaled[:, :2].mean(dim=1) + scaled[:, 2].clamp(min=0)


def ask_pool(labeled: Tensor, labels: Tensor, pool: Tensor, num_classes: int, none: Tensor | None = None) -> PoolAsked:
    """Fit to features of labeled images with their classes, of pool images (there may be none), and of images that
    are known to be of no class."""
    clusters = fit_clusters(labeled, labels, pool, num_classes, none=none)
    neighbors = fit_neighbors(labeled, pool, at_once=AT_ONCE, none=none)
    seen = pool if len(pool) else labeled
    parts = [neighbors.score_and_novelty(rows) for rows in torch.split(seen, AT_ONCE)]
    by_neighbors, novelty = (torch.cat(column) for column in zip(*parts, strict=True))
    columns = torch.stack([clusters.score(seen), by_neighbors, novelty], dim=1)
    middle = columns.mean(dim=0)
    middle[2] = novelty.sort().values[int(USUAL * (len(novelty) - 1))]
    return PoolAsked(clusters, neighbors, middle, columns.std(dim=0, correction=0).clamp(min=LEAST_SPREAD))
