"""GradNorm: how strongly an image would pull the last layer away from a uniform answer.

The L1 norm of the gradient of KL(uniform ‖ softmax(W z + b)) with respect to W, in closed form since that gradient is
the outer product (p - 1/K) zᵀ:

    score = -‖z‖₁ ‖p - 1/K‖₁

Reference: Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild, NeurIPS 2021,
at temperature 1. z are the inputs of the classifier's last layer.
"""

from __future__ import annotations

from torch import Tensor, nn

from osp.scores.base import Score, last_layer


class GradNormScore(Score):
    name = "gradnorm"
    summary = "-‖z‖₁ ‖p - 1/K‖₁: the gradient of the last layer towards a uniform answer (Huang et al. 2021)"

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        inputs, _ = last_layer(features, classifier)
        pull = logits.softmax(dim=1) - 1 / logits.shape[1]
        return -inputs.abs().sum(dim=1) * pull.abs().sum(dim=1)
