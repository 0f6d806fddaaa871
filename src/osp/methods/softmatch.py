"""SoftMatch: every prediction on a weak view labels the strong view, weighted by how confident it is for its time.

    q = softmax(f(w(u))) without gradient,  ŷ = argmax q,  c = max q
    λ_i = exp(-min(c_i - m, 0)² / (2 v / n²))       m, v running mean and variance of c; 1 from the mean on
    L = mean_B H(y, p(w(x))) + weight · (1 / μB) Σ_i λ_i H(ŷ_i, p(s(u_i)))

Reference: Chen et al., SoftMatch: Addressing the Quantity-Quality Trade-off in Semi-supervised Learning, ICLR 2023. It
has no notion of OOD images. OOD score: 1 - max softmax of the averaged weights.

Differences from the release: the running mean and variance start at the first batch's instead of at 1/K and 1, which
thousands of steps would have to forget, and forget faster by default; no uniform alignment of the predictions, which
takes the pool for a balanced sample of the classes; weak views as in FixMatch here (`osp.methods.fixmatch`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.distributed import gathered
from osp.methods._published import fixmatch_optimizer
from osp.methods.base import Batch, Method, Options, Published, Step, Task
from osp.methods.fixmatch import three_looks
from osp.nets import Network

SOFTMATCH = "SoftMatch paper"


class SoftMatchOptions(Options):
    decay: float = Field(0.99, ge=0, lt=1, description="decay of the running mean m and variance v of confidences")
    sharpness: float = Field(2.0, gt=0, description="n: standard deviations over which a weight falls, inverted")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of the unlabeled loss")
    joint_weak: bool = Field(False, description="weak views in one pass with the others, with an unneeded graph")


def soft_weights(confidence: Tensor, mean: Tensor, variance: Tensor, sharpness: float) -> Tensor:
    """λ = exp(-min(c - m, 0)² / (2 v / n²)).

    >>> weights = soft_weights(torch.tensor([0.9, 0.5]), torch.tensor(0.7), torch.tensor(0.08), 2.0)
    >>> [round(value, 4) for value in weights.tolist()]  # exp(-0.04 / 0.04) for the second
    [1.0, 0.3679]
    """
    below = (confidence - mean).clamp(max=0)
    return (-below.square() * sharpness**2 / (2 * variance.clamp(min=1e-8))).exp()


class SoftMatch(Method):
    name = "softmatch"
    summary = "predictions on weak views label the strong views, weighted by confidence"
    reference = "Chen et al., SoftMatch, ICLR 2023"
    Options = SoftMatchOptions
    unlabeled_views = ("weak", "strong")
    mechanism = ("weight",)
    paper_data = ("cifar10", "cifar100", "stl10")
    paper_steps = 2**20
    paper = {  # noqa: RUF012
        **fixmatch_optimizer(SOFTMATCH, cifar100_decay=1e-3),
        **Published.all(SOFTMATCH, mu=7, decay=0.999, sharpness=2.0, unlabeled_weight=1.0),
        "joint_weak": Published(True, "SoftMatch release"),
    }
    moments: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.register_buffer("moments", torch.zeros(3))  # running sums of m, v and of the weights of both

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o = self.options
        labeled_logits, weak_logits, strong_logits = three_looks(self.net, batch, o.joint_weak)
        confidence, labels = weak_logits.softmax(dim=1).max(dim=1)
        mean, variance = self.update(confidence)
        weights = soft_weights(confidence, mean, variance, o.sharpness)
        consistency = (weights * F.cross_entropy(strong_logits, labels, reduction="none")).mean()
        self.log("weight", weights.mean())
        self.log("confidence", mean)
        return {
            "ce": F.cross_entropy(labeled_logits, batch["labeled"].targets),
            "consistency": o.unlabeled_weight * consistency,
        }

    @torch.no_grad()
    def update(self, confidence: Tensor) -> tuple[Tensor, Tensor]:
        """m and v after this step: means that forget by `decay`, over those of the global batches so far."""
        whole = gathered(confidence)
        now = torch.stack([whole.mean(), whole.var(correction=min(len(whole) - 1, 1)), whole.new_ones(())])
        self.moments = self.options.decay * self.moments + (1 - self.options.decay) * now
        mean, variance = self.moments[:2] / self.moments[2]
        return mean, variance
