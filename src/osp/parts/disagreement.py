"""How far several classifiers of one image disagree, and how much the answers of one tell about those of another."""

from __future__ import annotations

import torch
from torch import Tensor

from osp.parts.reduce import batch_mean, widened

LARGEST = 2**22
"""Joint probabilities at once, where one head alone has no more: ten heads of a thousand classes have 10⁸ of them."""


def disagreement(probabilities: Tensor) -> Tensor:
    """D = (1 / H²K) Σ_{h,g,k} |p_hk - p_gk| of each image, from N×H×K: 0 where all H heads say the same.

    Over sorted values a_0 <= ... <= a_{H-1} of a class, Σ_{h,g} |a_h - a_g| = 2 Σ_i (2i - H + 1) a_i.

    >>> disagreement(torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]])).tolist()
    [0.5, 0.0]
    """
    heads, classes = probabilities.shape[1:]
    factors = 2 * torch.arange(heads, device=probabilities.device) - heads + 1
    gaps = probabilities.sort(dim=1).values * factors[:, None]
    return 2 * gaps.sum(dim=(1, 2)) / (heads**2 * classes)


def mutual_information(probabilities: Tensor) -> Tensor:
    """Mean over pairs h < g of I_hg = Σ_kl J_kl ln (J_kl / (m_hk m_gl)), from N×H×K; 0 for a single head.

    J = mean_i p_hi p_giᵀ is the joint distribution of two heads' answers over the batch, m_h = mean_i p_hi. It is 0
    where one head's answer tells nothing about another's: minimized, heads that must agree on labeled images look for
    different rules on the others. Over several processes the means are those of the global batch.

    >>> same = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> round(mutual_information(same).item(), 4)  # ln 2: two heads, two images, always the same answer
    0.6931
    """
    _, heads, classes = probabilities.shape
    flat = widened(probabilities).flatten(1)
    tiny = torch.finfo(flat.dtype).tiny  # a joint probability may be 0, and 0 ln 0 = 0
    marginal = batch_mean(flat.mean(dim=0)).clamp(min=tiny).log()
    at_once = max(1, LARGEST // (heads * classes**2))  # heads; each with itself and all that follow
    total = flat.new_zeros(())
    for first in range(0, heads, at_once):
        start, end = first * classes, (first + at_once) * classes
        with torch.autocast(flat.device.type, enabled=False):  # half precision has no such small probabilities
            joint = batch_mean(flat[:, start:end].T @ flat[:, start:] / len(flat))
        terms = joint * (joint.clamp(min=tiny).log() - marginal[start:end, None] - marginal[None, start:])
        information = terms.view(-1, classes, heads - first, classes).sum(dim=(1, 3))
        total = total + information.triu(diagonal=1).sum()
    return total / max(heads * (heads - 1) // 2, 1)
