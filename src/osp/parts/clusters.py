"""The pool as classes and unknown kinds: an OOD score from soft clusters, some of which have labels.

Labeled images fix K centers; M free centers settle where the pool is dense and no label is. An image is OOD as far as
the free centers claim it, however sure a classifier is of it. Beyond the paper; see docs/osp.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from osp.parts.neighbors import principal_directions

SHARPNESS = 10.0
"""κ: how sharply an image belongs to its nearest centers."""
STARTS = 3
ROUNDS = 20
DIRECTIONS = 256
"""At most so many principal directions of the features are compared."""
LEAST_VARIANCE = 1e-3
"""Of a direction, as a share of the largest: what varies less is not stretched further."""


@dataclass(frozen=True)
class Clusters:
    """Centers of the classes and free ones, found from S starts, in a space where rows have length one.

    z = B (f - mean) / ‖B (f - mean)‖       B: principal directions, each divided by the root of its deviation
    """

    mean: Tensor
    """D."""
    basis: Tensor
    """D×d: B transposed."""
    known: Tensor
    """S×K×d: of the classes."""
    free: Tensor
    """S×M×d: of unknown kinds; M may be 0."""

    def embed(self, features: Tensor) -> Tensor:
        """z, n×d."""
        return F.normalize((features.float() - self.mean) @ self.basis, dim=1)

    def score(self, features: Tensor) -> Tensor:
        """The log-odds of the free centers against the classes, averaged over starts; larger = more OOD.

            s(z) = mean over starts of  ln Σ_m exp(κ z·f_m) - ln Σ_c exp(κ z·w_c)

        Without free centers the first term is 0, and what is far from every class is OOD.
        """
        with torch.autocast(features.device.type, enabled=False):  # half precision blurs who is nearest
            return self.odds(self.embed(features))

    def kinds(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The free center of the first start nearest each image, -1 where a class is nearer, and its cosine."""
        z = self.embed(features)
        if self.free.shape[1] == 0:
            return torch.full((len(z),), -1), torch.zeros(len(z))
        cosine, kind = (z @ self.free[0].T).max(dim=1)
        return torch.where(cosine > (z @ self.known[0].T).amax(dim=1), kind, -1), cosine

    def odds(self, z: Tensor) -> Tensor:
        """The score of rows that are embedded already."""
        of_classes = (SHARPNESS * z @ self.known.mT).logsumexp(dim=2)
        if self.free.shape[1] == 0:
            return -of_classes.mean(dim=0)
        of_others = (SHARPNESS * z @ self.free.mT).logsumexp(dim=2)
        return (of_others - of_classes).mean(dim=0)


def half_whitened(features: Tensor, mean: Tensor) -> Tensor:
    """U λ^(-1/4), D×d: the leading eigenvectors of the covariance, each over the fourth root of its eigenvalue.

    Unchanged, a few directions of large variance would decide every comparison; fully whitened, noise would.
    """
    centered = features - mean
    leading = principal_directions(centered, DIRECTIONS)
    seen = (centered @ leading).double()
    values, vectors = torch.linalg.eigh(seen.T @ seen / max(len(seen), 1))
    least = (LEAST_VARIANCE * values[-1]).clamp(min=torch.finfo(torch.float32).tiny)
    stretched: Tensor = vectors * values.clamp(min=least) ** -0.25
    return (leading @ stretched.float()).contiguous()


def free_centers(num_classes: int, num_pool: int) -> int:
    """M = 2K, at least 10 and at most one for every ten images of the pool.

    >>> [free_centers(*sizes) for sizes in ((50, 4000), (6, 4000), (6, 50), (6, 0))]
    [100, 12, 5, 0]
    """
    return min(max(2 * num_classes, 10), num_pool // 10)


def fit_clusters(
    labeled: Tensor,
    labels: Tensor,
    pool: Tensor,
    num_classes: int,
    num_free: int | None = None,
    none: Tensor | None = None,
) -> Clusters:
    """Clusters of labeled features (n×D, classes 0..K-1) and of pool features (m×D; m may be 0).

    From the class means and M pool images, far from the classes and from one another, twenty rounds of

        r_i = softmax_k(κ z_i·C_k) for images of the pool, r_i = e_y for labeled ones
        C_k = Σ_i r_ik z_i, scaled to length one

    Images known to be of no class (`none`) belong to free centers only, and begin one more of them for every four
    images, at most K.
    `num_free` is `free_centers` unless given. The same bits for the same features, whatever else was drawn before.
    """
    count = free_centers(num_classes, len(pool)) if num_free is None else min(num_free, len(pool))
    none = pool[:0] if none is None else none
    both = torch.cat([labeled, none, pool]).float()
    mean = both.double().mean(dim=0).float()
    empty = both.new_empty(0, 0, 0)
    space = Clusters(mean, half_whitened(both, mean), empty, empty)
    known, free = find_centers(
        space.embed(labeled), labels, space.embed(pool), num_classes, count, space.embed(none), STARTS, ROUNDS
    )
    return replace(space, known=known, free=free)


def find_centers(
    labeled: Tensor,
    labels: Tensor,
    pool: Tensor,
    num_classes: int,
    num_free: int,
    none: Tensor,
    starts: int,
    rounds: int,
) -> tuple[Tensor, Tensor]:
    """The centers of classes (S×K×d, K may be 0) and the free ones (S×M×d), of rows that are embedded already."""
    sums = torch.zeros(num_classes, labeled.shape[1], device=labeled.device).index_add_(0, labels, labeled)
    classes, found = F.normalize(sums, dim=1), []
    more = min(num_classes, len(none) // 4)
    for start in range(starts):
        first = torch.cat([classes, _far_apart(classes, none, more, start)]) if more else classes
        begun = torch.cat([first, _far_apart(first, pool, num_free, start)])
        found.append(_settle(sums, pool, begun, none, rounds))
    centers = torch.stack(found)
    return centers[:, :num_classes].contiguous(), centers[:, num_classes:].contiguous()


def _far_apart(classes: Tensor, pool: Tensor, count: int, seed: int) -> Tensor:
    """k-means++: each further center a pool image, drawn by its squared distance to the nearest center so far."""
    draws = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if count == 0:
        return pool[:0]
    nearest = (pool @ classes.T).amax(dim=1) if len(classes) else pool.new_zeros(len(pool))
    chosen = []
    for draw in draws:
        chance = (1 - nearest.double()).clamp(min=0).cumsum(dim=0).cpu()
        place = min(int(torch.searchsorted(chance, draw * chance[-1])), len(pool) - 1)
        chosen.append(pool[place])
        nearest = torch.maximum(nearest, pool @ chosen[-1])
    return torch.stack(chosen)


def _settle(sums: Tensor, pool: Tensor, centers: Tensor, none: Tensor, rounds: int) -> Tensor:
    """The centers after the rounds, classes first; `sums` are the labeled features added up by class."""
    classes = len(sums)
    for _ in range(rounds):
        belongs = (SHARPNESS * pool @ centers.T).softmax(dim=1)
        total = belongs.T @ pool
        total[:classes] += sums
        if len(none) and len(centers) > classes:
            total[classes:] += (SHARPNESS * none @ centers[classes:].T).softmax(dim=1).T @ none
        centers = F.normalize(total, dim=1)
    return centers


def aliasing_prototypes(clusters: Clusters, pool: Tensor) -> Tensor:
    """For each class the mean feature of the unknown kind most like it, K×D; zero where there is no unknown kind.

        o_c = Σ_i r_im x_i / Σ_i r_im with m = argmax_m w_c·f_m

    from raw features x of pool images and the first start's centers.
    """
    known, free = clusters.known[0], clusters.free[0]
    if len(free) == 0:
        return torch.zeros_like(known)
    belongs = (SHARPNESS * clusters.embed(pool) @ torch.cat([known, free]).T).softmax(dim=1)[:, len(known) :]
    means = (belongs.T @ pool.float()) / belongs.sum(dim=0)[:, None].clamp(min=torch.finfo(torch.float32).tiny)
    return means[(known @ free.T).argmax(dim=1)]
