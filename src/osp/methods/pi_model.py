"""Pi-Model: two noisy looks at the same unlabeled image must give the same prediction.

    L_u = mean_u (1 / K) Σ_c (p_c(w'(u)) - sg[p_c(w(u))])²
    L = mean_B H(y, p(w(x))) + λ(t) L_u,  λ(t) = weight · exp(-5 (1 - min(t / ramp, 1))²)

w and w' are independent draws of the weak view; where the network has dropout, each look has a mask of its own, which
is part of the noise. Reference: Laine and Aila, Temporal Ensembling for Semi-Supervised Learning, ICLR 2017, in the
form of Oliver et al., NeurIPS 2018. OOD score: 1 - max softmax.

Passes: w(u) alone without a graph, batch norms using the batch but not remembering it; then [w(x); w'(u)] jointly.

Differences: Laine and Aila pull the labeled images together too and let the gradient through both looks; as in Oliver
et al. neither is done here. Oliver et al. join the labeled images with the look that is the target, ours are joined
with the one that is learned, which saves a graph and is the same by symmetry but for the batch statistics. Their input
noise is `input_noise`; their whitening is left out for the reason that supervised.py gives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import OLIVER, SEMI_SUPERVISED, NoiseOptions
from osp.methods.base import Batch, Method, Published, Step
from osp.nets import frozen_batchnorm_statistics
from osp.parts.consistency import noisy


class PiModelOptions(NoiseOptions):
    unlabeled_weight: float = Field(20.0, ge=0, description="largest weight of the consistency loss")
    ramp: float = Field(0.4, ge=0, le=1, description="share of the run over which that weight rises")


def squared_gap(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Mean over images and classes of (p - sg[q])², p and q the softmax of the logits, in single precision.

    >>> squared_gap(torch.tensor([[0.0, 0.0]]), torch.tensor([[90.0, 0.0]])).item()
    0.25
    """
    return F.mse_loss(logits.float().softmax(dim=1), target_logits.detach().float().softmax(dim=1))


class PiModel(Method):
    name = "pi-model"
    summary = "two noisy looks at an unlabeled image must agree"
    reference = "Laine and Aila, Temporal Ensembling for Semi-Supervised Learning, ICLR 2017"
    Options = PiModelOptions
    unlabeled_views = ("weak", "weak2")
    mechanism = ("look_gap",)
    paper_steps = 500_000
    paper_data = ("cifar10",)
    paper = {  # noqa: RUF012
        **SEMI_SUPERVISED,
        **Published.all(OLIVER, lr=3e-4, unlabeled_weight=20.0),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled, unlabeled, noise = batch["labeled"], batch["unlabeled"], self.options.input_noise
        with torch.no_grad(), frozen_batchnorm_statistics(self.net):
            target_logits = self.net(noisy(unlabeled["weak"], noise, step.generator("noise first look")))
        second = noisy(unlabeled["weak2"], noise, step.generator("noise second look"))
        logits = self.net(torch.cat([noisy(labeled["weak"], noise, step.generator("noise labeled")), second]))
        labeled_logits, second_logits = logits[: len(labeled.rows)], logits[len(labeled.rows) :]
        gap = squared_gap(second_logits, target_logits)
        self.log("look_gap", self.task.num_classes * gap.detach())
        weight = self.options.unlabeled_weight * step.sigmoid_ramp(self.options.ramp)
        return {"ce": F.cross_entropy(labeled_logits, labeled.targets), "consistency": weight * gap}
