"""Squared Mahalanobis distance to the nearest class mean.

    min_c (z - m_c)ᵀ Σ⁻¹ (z - m_c) with m_c the mean of a class and Σ the covariance within classes

Labels may be fewer than features, and Σ then singular: it is shrunk towards a multiple of the identity by the rule of
Ledoit and Wolf (2004).

Reference: Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks,
NeurIPS 2018; from the last features alone, without its input perturbation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osp.scores.base import Score


class MahalanobisScore(Score):
    name = "mahalanobis"
    summary = "min_c (z - m_c)ᵀ Σ⁻¹ (z - m_c): distance to a class mean, one covariance for all (Lee et al. 2018)"
    fitted = True
    means: Tensor
    precision: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.register_buffer("means", torch.full((num_classes, feature_dim), torch.nan))
        self.register_buffer("precision", torch.eye(feature_dim))

    def fit(self, features: Tensor, logits: Tensor, labels: Tensor, classifier: nn.Module) -> None:
        from sklearn.covariance import ledoit_wolf

        features, labels = features.double().cpu(), labels.cpu()
        member = F.one_hot(labels, len(self.means)).double()
        means = (member.T @ features) / member.sum(dim=0).clamp(min=1)[:, None]
        covariance, _ = ledoit_wolf((features - means[labels]).numpy(), assume_centered=True)
        spread = torch.from_numpy(covariance)
        spread += 1e-6 * spread.diagonal().mean().clamp(min=1e-12) * torch.eye(len(spread), dtype=spread.dtype)
        self.means.copy_(means)
        self.precision.copy_(torch.linalg.inv(spread))

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        whitened = features @ self.precision
        own = (whitened * features).sum(dim=1, keepdim=True)
        middle = self.means @ self.precision
        squared = own - 2 * features @ middle.T + (middle * self.means).sum(dim=1)
        return squared.amin(dim=1)
