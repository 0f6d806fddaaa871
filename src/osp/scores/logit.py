"""Maximum logit: like the largest probability, but without the normalization, which hides how large the logits are.

    -max_c f_c

Reference: Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022.
"""

from __future__ import annotations

from torch import Tensor, nn

from osp.scores.base import Score


class LogitScore(Score):
    name = "logit"
    summary = "-max_c f_c: the largest logit (Hendrycks et al. 2022)"

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return -logits.amax(dim=1)
