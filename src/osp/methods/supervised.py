"""Supervised: the labelled images alone, the baseline of every table.

    L = mean_B H(y, p(w(x)))

The same number at every OOD ratio, because no unlabelled image is used. Reference: Oliver et al., Realistic Evaluation
of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018. Our default is the common harness (SGD 0.03, cosine); the
`paper` preset is Oliver's Adam. OOD score: 1 - max softmax.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from osp.methods._published import OLIVER, OPTIMIZER
from osp.methods.base import Batch, Method, Published, Step


class Supervised(Method):
    name = "supervised"
    summary = "labelled images alone: the baseline"
    reference = "Oliver et al., Realistic Evaluation of Deep SSL Algorithms, NeurIPS 2018"
    unlabeled_views = ()
    paper_steps = 500_000
    paper = {  # noqa: RUF012
        **OPTIMIZER,
        "lr": Published(3e-3, OLIVER),
        "batch": Published(100, OLIVER),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled = batch["labeled"]
        return {"ce": F.cross_entropy(self.net(labeled["weak"]), labeled.targets)}
