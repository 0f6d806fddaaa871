"""The score of Safe-Student: how much the energy of the logits owes to the predicted class.

    -ED with ED = T ln Σ_c exp(f_c / T) - T ln Σ_{c ≠ ŷ} exp(f_c / T), T = 10

Reference: He et al., Safe-Student for Safe Deep Semi-Supervised Learning with Unseen-Class Unlabeled Data, CVPR 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.scores.base import Score


def energy_discrepancy(logits: Tensor, temperature: float) -> Tensor:
    """ED = T ln Σ_c exp(f_c / T) - T ln Σ_{c ≠ argmax f} exp(f_c / T); larger = more likely a seen class.

    >>> round(energy_discrepancy(torch.zeros(1, 2), 10.0).item(), 4)  # 10 ln 2 - 10 ln 1
    6.9315
    """
    scaled = logits.float() / temperature
    others = scaled.scatter(1, scaled.argmax(dim=1, keepdim=True), -torch.inf)
    return temperature * (scaled.logsumexp(dim=1) - others.logsumexp(dim=1))


class EnergyDiscrepancyScore(Score):
    name = "energy-discrepancy"
    summary = "-ED: what the energy owes to the predicted class, the score of Safe-Student"
    own = True

    def __init__(self, feature_dim: int, num_classes: int, temperature: float = 10.0) -> None:
        super().__init__(feature_dim, num_classes)
        self.temperature = temperature
        self.made_with = {"temperature": temperature}

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return -energy_discrepancy(logits, self.temperature)
