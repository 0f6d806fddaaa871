"""Maximum softmax probability: the score of every method without a detector of its own.

    1 - max_c p_c with p = softmax(f)

Reference: Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
Networks, ICLR 2017.
"""

from __future__ import annotations

from torch import Tensor, nn

from osp.scores.base import Score


class SoftmaxScore(Score):
    name = "softmax"
    summary = "1 - max_c p_c: the largest probability (Hendrycks and Gimpel 2017)"

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return 1.0 - logits.softmax(dim=1).amax(dim=1)
