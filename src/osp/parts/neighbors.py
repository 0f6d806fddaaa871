"""Who has labelled images for neighbours? An OOD score from the shape of the pool itself.

The labelled images say which clusters of the feature space are ID: a cluster of OOD images has no labelled member, even
where the classifier is sure of its members. Beyond the paper; see docs/osp.md for why it is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor


class NeighborScore:
    """Distance to the labelled images, averaged along the neighbours of a sample of the pool.

    On labelled and reference features (normalised, reduced to `dim` principal directions):

        s_i = 0 for labelled i, else 1 - max over labelled j of cos(z_i, z_j)
        repeat `rounds` times:  s_i <- mean of s over the k nearest nodes of i;  s = 0 again for labelled nodes

    and the score of any image is the mean of s over its k nearest nodes: near 0 if a chain of neighbours leads to a
    labelled image, larger the more foreign. Cost: one matrix product with the references, never quadratic in the pool.
    """

    def __init__(self, labeled: Tensor, references: Tensor, k: int = 10, rounds: int = 3, dim: int = 64) -> None:
        self.basis = principal_directions(unit_rows(references.float()), dim)
        self.nodes = self.embed(torch.cat([labeled, references]))
        self.k = min(k, len(self.nodes))
        count = len(labeled)
        self.values = 1 - (self.nodes @ self.nodes[:count].T).amax(dim=1)
        neighbors = (self.nodes @ self.nodes.T).topk(self.k, dim=1).indices
        for _ in range(rounds):
            self.values[:count] = 0
            self.values = self.values[neighbors].mean(dim=1)
        self.values[:count] = 0

    def embed(self, features: Tensor) -> Tensor:
        return unit_rows(unit_rows(features.float()) @ self.basis)

    def __call__(self, features: Tensor) -> Tensor:
        """Scores of features; larger = more OOD."""
        with torch.autocast(features.device.type, enabled=False):  # half precision blurs who is nearest
            neighbors = (self.embed(features) @ self.nodes.T).topk(self.k, dim=1).indices
        return self.values[neighbors].mean(dim=1)


def unit_rows(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features, dim=1)


def principal_directions(features: Tensor, dim: int, rounds: int = 4) -> Tensor:
    """About the D×dim leading eigenvectors of the (uncentred) second-moment matrix; the identity where D is small.

    Found by a few rounds of subspace iteration, Q <- orth(Xᵀ X Q), from a fixed start and with directions to spare:
    with D in the thousands exact eigenvectors would cost a quarter of the pass over the pool.
    """
    size = features.shape[1]
    if size <= dim:
        return torch.eye(size, device=features.device)
    start = torch.randn(size, min(dim + 16, size), generator=torch.Generator().manual_seed(0))
    basis: Tensor = start.to(features)
    for _ in range(rounds):
        basis = torch.linalg.qr(features.T @ (features @ basis)).Q
    seen = features @ basis
    rotation: Tensor = torch.linalg.eigh((seen.T @ seen).double()).eigenvectors[:, -dim:]
    return basis @ rotation.to(features.dtype)
