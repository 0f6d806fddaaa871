"""Supervised: the labeled images alone, the baseline of every table.

    L = mean_B H(y, p(w(x)))

The same number at every OOD ratio, because no unlabeled image is used. Reference: Oliver et al., Realistic Evaluation
of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018. Our default is the common harness (SGD 0.03, cosine); the
`paper` preset is Oliver's Adam, with Gaussian noise on the images. OOD score: 1 - max softmax.

Oliver et al. also whiten CIFAR-10 (global contrast normalization and ZCA). Nothing here does: the views are one for all
methods, so that they can be compared, and a model must read single photos as it is given them; each channel has mean 0
and variance 1 instead.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from osp.methods._published import OLIVER, RECIPE, NoiseOptions
from osp.methods.base import Batch, Method, Published, Step
from osp.parts.consistency import noisy


class Supervised(Method):
    name = "supervised"
    summary = "labeled images alone: the baseline"
    reference = "Oliver et al., Realistic Evaluation of Deep SSL Algorithms, NeurIPS 2018"
    Options = NoiseOptions
    unlabeled_views = ()
    paper_steps = 500_000
    paper_data = ("cifar10",)
    paper = {  # noqa: RUF012
        **RECIPE,
        **Published.all(OLIVER, lr=3e-3, batch=100),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled = batch["labeled"]
        images = noisy(labeled["weak"], self.options.input_noise, step.generator("noise labeled"))
        return {"ce": F.cross_entropy(self.net(images), labeled.targets)}
