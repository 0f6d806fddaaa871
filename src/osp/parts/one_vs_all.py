"""One-vs-all detectors: for each class a yes or no of its own, whether an image belongs to it.

The head gives 2K logits, for each class k one for "out" and one for "in". All that follows depends on their difference,
the margin m_k = l_in,k - l_out,k, alone:

    o_k = sigmoid(m_k)  the probability that the image belongs to class k,  1 - o_k  that it does not
    -ln o_k = softplus(-m_k),  -ln (1 - o_k) = softplus(m_k)

The K answers are independent: they do not sum to one, and an image may belong to no class at all. Margins are in single
precision, whatever the network computes in. From Saito et al., OpenMatch, NeurIPS 2021; also in IOMatch and SSB.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear_layers(sizes: list[int], bias: bool = True) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them: Xavier-normal weights, zero biases, no batch norm."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layer = nn.Linear(inputs, outputs, bias=bias)
        nn.init.xavier_normal_(layer.weight)
        if bias:
            nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class OneVsAllHead(nn.Module):
    """Features to margins N×K, through a linear layer without bias or, with `hidden` sizes, through several with one.

    The first K of the 2K outputs are "out", the others "in".
    """

    def __init__(self, feature_dim: int, num_classes: int, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.layers = linear_layers([feature_dim, *hidden, 2 * num_classes], bias=bool(hidden))

    def forward(self, features: Tensor) -> Tensor:
        outside, inside = self.layers(features).float().chunk(2, dim=1)
        margins: Tensor = inside - outside
        return margins


def positive_loss(margins: Tensor, targets: Tensor) -> Tensor:
    """mean_i -ln o_y: each image belongs to its own class.

    >>> round(positive_loss(torch.zeros(1, 3), torch.tensor([0])).item(), 4)  # ln 2
    0.6931
    """
    return F.softplus(-margins.gather(1, targets[:, None])).mean()


def hardest_negative_loss(margins: Tensor, targets: Tensor) -> Tensor:
    """mean_i max_{k ≠ y} -ln (1 - o_k): of the other classes only the one that claims the image most."""
    others = margins.scatter(1, targets[:, None], -torch.inf)
    return F.softplus(others.max(dim=1).values).mean()


def all_negatives_loss(margins: Tensor, targets: Tensor) -> Tensor:
    """(1 / NK) Σ_i Σ_{k ≠ y} -ln (1 - o_k): the own class counts as 0, yet the mean runs over all K."""
    other = F.one_hot(targets, margins.shape[1]) == 0
    return torch.where(other, F.softplus(margins), 0.0).mean()


def one_vs_all_loss(margins: Tensor, targets: Tensor) -> Tensor:
    """L_ova of OpenMatch and L_mb of IOMatch: the positive and the hardest negative.

    >>> round(one_vs_all_loss(torch.zeros(1, 3), torch.tensor([0])).item(), 4)  # 2 ln 2
    1.3863
    """
    return positive_loss(margins, targets) + hardest_negative_loss(margins, targets)


def soft_consistency(margins: Tensor, other_margins: Tensor) -> Tensor:
    """L_socr between two views: mean_i Σ_k [(o_k - o'_k)² + ((1 - o_k) - (1 - o'_k))²] = mean_i 2 Σ_k (o_k - o'_k)².

    Both views receive a gradient; the sum over classes grows with K.
    """
    return 2 * (margins.sigmoid() - other_margins.sigmoid()).square().sum(dim=1).mean()
