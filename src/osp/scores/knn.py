"""Distance to the k-th nearest labeled feature, all features at unit length.

    ‖z/‖z‖ - n_k‖ with n_k the k-th nearest of the labeled features; k = 5, or the number of labels if that is smaller

Reference: Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022. There k grows with the
number of labeled images (50 on CIFAR-10); ours are few.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osp.scores.base import Score


class NearestScore(Score):
    name = "knn"
    summary = "distance to the k-th nearest labeled feature at unit length (Sun et al. 2022)"
    fitted = True
    known: Tensor

    def __init__(self, feature_dim: int, num_classes: int, k: int = 5) -> None:
        super().__init__(feature_dim, num_classes)
        self.k = k
        self.made_with = {"k": k}
        self.register_buffer("known", torch.full((1, feature_dim), torch.nan))

    def fit(self, features: Tensor, logits: Tensor, labels: Tensor, classifier: nn.Module) -> None:
        self.known = F.normalize(features.float(), dim=1).to(self.known.device)

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        similar = F.normalize(features, dim=1) @ self.known.T
        kth = similar.topk(min(self.k, len(self.known)), dim=1).values[:, -1]
        return (2 - 2 * kth).clamp(min=0).sqrt()
