"""ViM, virtual-logit matching: one more logit for what lies outside the space that the labeled features span.

With the last layer f = W z + b, x = z - o measured from the origin o = -W⁺ b, where the logits are 0 (W⁺ the
pseudo-inverse), and x^⊥ its part outside the principal space of the labeled features:

    v = a ‖x^⊥‖,  a = Σ_i max_c f_c(x_i) / Σ_i ‖x_i^⊥‖ over the labeled images
    score = v - ln Σ_c exp f_c, which orders images as the probability of v in softmax(f_1, ..., f_K, v) does

Reference: Wang et al., ViM: Out-of-Distribution with Virtual-logit Matching, CVPR 2022; its release scores by this
difference, too. There the principal space has 512 or 1,000 dimensions, fitted to 200,000 images. Ours has half as many
as the labeled images or their features, whichever are fewer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.scores.base import Score, last_layer


class ViMScore(Score):
    name = "vim"
    summary = "a ‖x^⊥‖ - ln Σ_c exp f_c: a logit for what lies outside the principal space (Wang et al. 2022)"
    fitted = True
    origin: Tensor
    principal: Tensor
    scale: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(feature_dim, num_classes)
        self.register_buffer("origin", torch.zeros(feature_dim))
        self.register_buffer("principal", torch.zeros(feature_dim, 0))  # orthonormal columns
        self.register_buffer("scale", torch.tensor(torch.nan))

    def fit(self, features: Tensor, logits: Tensor, labels: Tensor, classifier: nn.Module) -> None:
        inputs, layer = last_layer(features.float(), classifier)
        device, inputs = self.scale.device, inputs.detach().double().cpu()
        weight = layer.weight.detach().double().cpu()
        bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.detach().double().cpu()
        origin = -torch.linalg.pinv(weight) @ bias
        directions = torch.linalg.svd(inputs - origin, full_matrices=False).Vh  # by falling singular value
        self.origin = origin.float().to(device)
        self.principal = directions[: min(inputs.shape) // 2].T.contiguous().float().to(device)
        outside = self.residual(inputs.float().to(device)).mean()
        self.scale = logits.float().amax(dim=1).mean().to(device) / outside.clamp(min=1e-12)

    def residual(self, inputs: Tensor) -> Tensor:
        """‖x^⊥‖."""
        centered = inputs - self.origin
        norms: Tensor = torch.linalg.vector_norm(centered - centered @ self.principal @ self.principal.T, dim=1)
        return norms

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        inputs, _ = last_layer(features, classifier)
        return self.scale * self.residual(inputs) - logits.logsumexp(dim=1)
