"""OOD scores from features and logits of any trained network, after the fact; larger = more OOD.

| name | score | from |
|---|---|---|
| softmax | 1 - max_c p_c | Hendrycks and Gimpel 2017 |
| logit | -max_c f_c | Hendrycks et al. 2022 |
| energy | -ln Σ_c exp f_c | Liu et al. 2020 |
| knn | distance to the k-th nearest labelled feature, both of unit length | Sun et al. 2022 |
| mahalanobis | least squared Mahalanobis distance to a class mean, one covariance for all | Lee et al. 2018 |

The last two are fitted to the features of the labelled images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def max_softmax_score(logits: Tensor) -> Tensor:
    """1 - max_c p_c: the OOD score of every method without a detector of its own.

    >>> max_softmax_score(torch.tensor([[0.0, 0.0]])).item()
    0.5
    """
    return 1.0 - logits.softmax(dim=1).amax(dim=1)


def max_logit_score(logits: Tensor) -> Tensor:
    """-max_c f_c."""
    return -logits.amax(dim=1)


def energy_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """-T ln Σ_c exp(f_c / T).

    >>> round(energy_score(torch.zeros(1, 4)).item(), 4)  # -ln 4
    -1.3863
    """
    return -temperature * (logits / temperature).logsumexp(dim=1)


class PostHocScore(nn.Module, ABC):
    """Scores of images from their features and logits."""

    fitted = False
    """Whether the score is fitted to the features of the labelled images before it is used."""

    def fit(self, features: Tensor, labels: Tensor) -> None:
        """Learn from the features of the labelled images, where the score is one that does."""

    @abstractmethod
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """One number for each image; larger = more OOD."""


class LogitScore(PostHocScore):
    """One of the scores that need the logits alone."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = {"softmax": max_softmax_score, "logit": max_logit_score, "energy": energy_score}[name]

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        return self.function(logits)


class NearestScore(PostHocScore):
    """Distance to the k-th nearest labelled feature; with few labels the k is at most their number."""

    fitted = True
    known: Tensor

    def __init__(self, feature_dim: int, k: int = 5) -> None:
        super().__init__()
        self.k = k
        self.register_buffer("known", torch.zeros(0, feature_dim))

    def fit(self, features: Tensor, labels: Tensor) -> None:
        self.known = F.normalize(features.float(), dim=1).to(self.known.device)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        similar = F.normalize(features, dim=1) @ self.known.T
        kth = similar.topk(min(self.k, len(self.known)), dim=1).values[:, -1]
        return (2 - 2 * kth).clamp(min=0).sqrt()


class MahalanobisScore(PostHocScore):
    """min_c (z - m_c)ᵀ Σ⁻¹ (z - m_c) with Σ the covariance within classes.

    Labels may be fewer than features, and Σ then singular: it is shrunk towards a multiple of the identity by Ledoit
    and Wolf's rule.
    """

    fitted = True
    means: Tensor
    precision: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(num_classes, feature_dim))
        self.register_buffer("precision", torch.eye(feature_dim))

    def fit(self, features: Tensor, labels: Tensor) -> None:
        from sklearn.covariance import ledoit_wolf

        features, labels = features.double().cpu(), labels.cpu()
        member = F.one_hot(labels, len(self.means)).double()
        means = (member.T @ features) / member.sum(dim=0).clamp(min=1)[:, None]
        covariance, _ = ledoit_wolf((features - means[labels]).numpy(), assume_centered=True)
        spread = torch.from_numpy(covariance)
        spread += 1e-6 * spread.diagonal().mean().clamp(min=1e-12) * torch.eye(len(spread), dtype=spread.dtype)
        self.means.copy_(means)
        self.precision.copy_(torch.linalg.inv(spread))

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        whitened = features @ self.precision
        own = (whitened * features).sum(dim=1, keepdim=True)
        middle = self.means @ self.precision
        squared = own - 2 * features @ middle.T + (middle * self.means).sum(dim=1)
        return squared.amin(dim=1)


def post_hoc_score(name: str, feature_dim: int, num_classes: int) -> PostHocScore:
    """The score of this name."""
    if name == "knn":
        return NearestScore(feature_dim)
    if name == "mahalanobis":
        return MahalanobisScore(feature_dim, num_classes)
    return LogitScore(name)
