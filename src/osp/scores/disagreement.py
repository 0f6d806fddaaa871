"""The score of DAC: how far several heads, trained to differ where they may, disagree about an image.

    D = (1 / H²K) Σ_{h,g,k} |p_hk - p_gk| with p_h = softmax(C_h(g(z))), H linear heads on a projection g of features z

Reference: Kong et al., Diversify and Conquer, TNNLS 2025, whose release has exp(-D), larger for ID.
"""

from __future__ import annotations

from torch import Tensor, nn

from osp.parts.disagreement import disagreement
from osp.parts.one_vs_all import linear_layers
from osp.scores.base import Score


class DisagreementScore(Score):
    name = "disagreement"
    summary = "D: mean distance between the answers of DAC's heads"
    own = True

    def __init__(self, feature_dim: int, num_classes: int, heads: int = 10, width: int = 128) -> None:
        super().__init__(feature_dim, num_classes)
        self.num_heads = heads
        self.made_with = {"heads": heads, "width": width}
        self.projection = nn.Sequential(
            nn.LayerNorm(feature_dim, elementwise_affine=False),
            nn.Linear(feature_dim, feature_dim),
            nn.ReLU(),
            nn.Linear(feature_dim, width),
        )
        self.heads = linear_layers([width, heads * num_classes])

    def head_logits(self, features: Tensor) -> Tensor:
        """Logits of all heads, N×H×K, in single precision."""
        logits: Tensor = self.heads(self.projection(features)).float()
        return logits.view(-1, self.num_heads, self.num_classes)

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return disagreement(self.head_logits(features).softmax(dim=2))
