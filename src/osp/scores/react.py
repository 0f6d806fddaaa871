"""ReAct: the energy of the logits after large activations were cut off, which OOD images tend to have.

    -ln Σ_c exp f_c(min(z, t)) with t the 90th percentile of all activations of the labeled images

Reference: Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021. z are the
inputs of the classifier's last layer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from osp.scores.base import Score, last_layer

SHARE = 0.9


class ReActScore(Score):
    name = "react"
    summary = "-ln Σ_c exp f_c(min(z, t)): energy with large activations cut off (Sun et al. 2021)"
    fitted = True
    ceiling: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.register_buffer("ceiling", torch.tensor(torch.nan))

    def fit(self, features: Tensor, logits: Tensor, labels: Tensor, classifier: nn.Module) -> None:
        inputs, _ = last_layer(features.float(), classifier)
        self.ceiling.fill_(float(np.quantile(inputs.detach().cpu().numpy(), SHARE)))  # torch's stops at 16M numbers

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        inputs, layer = last_layer(features, classifier)
        cut: Tensor = layer(inputs.minimum(self.ceiling))
        return -cut.logsumexp(dim=1)
