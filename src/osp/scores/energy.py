"""Free energy of the logits.

    -ln Σ_c exp f_c

Reference: Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020, at temperature 1.
"""

from __future__ import annotations

from torch import Tensor, nn

from osp.scores.base import Score


class EnergyScore(Score):
    name = "energy"
    summary = "-ln Σ_c exp f_c: the free energy of the logits (Liu et al. 2020)"

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return -logits.logsumexp(dim=1)
