"""Who has labeled images for neighbors? An OOD score from the shape of the pool itself.

The labeled images say which clusters of the feature space are ID: a cluster of OOD images has no labeled member, even
where the classifier is sure of its members. Beyond the paper; see docs/osp.md for why it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WHOLE = 10_000
"""Nodes up to which all their cosines are computed at once."""


@dataclass(frozen=True)
class Neighbors:
    """Nodes of a graph of labeled images and a sample of the pool, and how far each is from the labels."""

    basis: Tensor
    """D×d: the directions in which images are compared."""
    nodes: Tensor
    """N×d, rows of length one."""
    values: Tensor
    """N; none where there was no pool to ask."""
    k: int = 10
    """Neighbors of an image."""

    def score(self, features: Tensor) -> Tensor:
        """The mean value of the nearest nodes; larger = more OOD.

        Near 0 if a chain of neighbors leads to a labeled image. Cost: one matrix product with the nodes, never
        quadratic in the pool. Without a pool it is one minus the largest cosine with a labeled image.
        """
        return self.score_and_novelty(features)[0]

    def score_and_novelty(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The score, and how far the k-th nearest node is: one minus its cosine."""
        with torch.autocast(features.device.type, enabled=False):  # half precision blurs who is nearest
            similar = embed(features, self.basis) @ self.nodes.T
        cosines, nearest = similar.topk(min(self.k, len(self.nodes)), dim=1)
        score = 1 - cosines[:, 0] if len(self.values) == 0 else self.values[nearest].mean(dim=1)
        return score, 1 - cosines[:, -1]


def fit_neighbors(
    labeled: Tensor,
    references: Tensor,
    k: int = 10,
    rounds: int = 3,
    dim: int = 64,
    at_once: int | None = None,
    none: Tensor | None = None,
) -> Neighbors:
    """Distance to the labeled images, averaged along the neighbors in a sample of the pool.

    On labeled and reference features (normalized, reduced to `dim` principal directions):

        s_i = 0 for labeled i, else 1 - max over labeled j of cos(z_i, z_j)
        repeat `rounds` times:  s_i <- mean of s over the k nearest nodes of i;  s = 0 again for labeled nodes

    Images known to be of no class (`none`) are nodes too, always with the largest s that a
    reference begins with.
    `at_once` bounds the memory: cosines of so many nodes with all are held at a time.
    """
    basis = principal_directions(F.normalize((references if len(references) else labeled).float(), dim=1), dim)
    none = references[:0] if none is None else none
    nodes, count = embed(torch.cat([labeled, none, references]), basis), len(labeled)
    outside = slice(count, count + len(none))
    if len(references) == 0:
        return Neighbors(basis, nodes, nodes.new_empty(0), k)
    chunks = torch.split(nodes, at_once or (len(nodes) if len(nodes) <= WHOLE else 2048))
    values = 1 - torch.cat([(chunk @ nodes[:count].T).amax(dim=1) for chunk in chunks])
    neighbors = torch.cat([(chunk @ nodes.T).topk(min(k, len(nodes)), dim=1).indices for chunk in chunks])
    far = values[outside.stop :].amax()
    for _ in range(rounds):
        values[:count], values[outside] = 0, far
        values = values[neighbors].mean(dim=1)
    values[:count], values[outside] = 0, far
    return Neighbors(basis, nodes, values, k)


def embed(features: Tensor, basis: Tensor) -> Tensor:
    """Features in the directions of the basis, at length one before and after."""
    return F.normalize(F.normalize(features.float(), dim=1) @ basis, dim=1)


def principal_directions(features: Tensor, dim: int, rounds: int = 4) -> Tensor:
    """About the D×dim leading eigenvectors of the (uncentered) second-moment matrix; the identity where D is small.

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
