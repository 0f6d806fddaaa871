"""Pseudo-Label: the network's own confident predictions on unlabeled images serve as their labels.

    q = softmax(f(w(u))) without gradient,  ŷ = argmax q,  m = 1[max q > threshold]
    L = mean_B H(y, p(w(x))) + λ(t) (1 / μB) Σ_i m_i H(ŷ_i, p(w(u_i))),  λ(t) = weight · exp(-5 (1 - min(t / ramp, 1))²)

The view that gives the label is the view that is learned, and the mean runs over all unlabeled images. Reference: Lee,
Pseudo-Label, ICML Workshop 2013, with the threshold of Oliver et al., NeurIPS 2018. It has no notion of OOD images:
they receive confident wrong labels. OOD score: 1 - max softmax.

Pass: [w(x); w(u)] jointly, once.

Differences: Lee has no threshold (threshold 0 gives that form) and a linear ramp; Oliver et al. write the loss as a
divergence from 10 · onehot(ŷ) as logits, which differs by the 0.0004 of probability left to the other classes. Where
the network has dropout, the labels are read off the same features without it. Oliver's input noise is `input_noise`;
their whitening is left out for the reason that supervised.py gives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import OLIVER, SEMI_SUPERVISED, NoiseOptions
from osp.methods.base import Batch, Method, Published, Step
from osp.parts.consistency import noisy
from osp.parts.reduce import masked_mean


class PseudoLabelOptions(NoiseOptions):
    threshold: float = Field(0.95, ge=0, le=1, description="confidence above which a prediction becomes a label")
    unlabeled_weight: float = Field(1.0, ge=0, description="largest weight of the unlabeled loss")
    ramp: float = Field(0.4, ge=0, le=1, description="share of the run over which that weight rises")


def self_label_loss(label_logits: Tensor, logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """(1 / n) Σ_i 1[max q_i > threshold] H(argmax q_i, p_i) with q = softmax(label logits), p that of logits; the mask.

    >>> sure, unsure = [9.0, 0.0], [0.1, 0.0]
    >>> loss, mask = self_label_loss(torch.tensor([sure, unsure]), torch.zeros(2, 2), 0.95)
    >>> round(loss.item(), 4), mask.tolist()  # ln 2 / 2: one of two images counts
    (0.3466, [True, False])
    """
    confidence, labels = label_logits.detach().float().softmax(dim=1).max(dim=1)
    mask = confidence > threshold
    return masked_mean(F.cross_entropy(logits.float(), labels, reduction="none"), mask, least=1.0), mask


class PseudoLabel(Method):
    name = "pseudo-label"
    summary = "the network's confident predictions become labels of the same images"
    reference = "Lee, Pseudo-Label, ICML Workshop on Challenges in Representation Learning 2013"
    Options = PseudoLabelOptions
    unlabeled_views = ("weak",)
    mechanism = ("mask_rate",)
    paper_steps = 500_000
    paper_data = ("cifar10",)
    paper = {  # noqa: RUF012
        **SEMI_SUPERVISED,
        **Published.all(OLIVER, lr=3e-4, unlabeled_weight=1.0),
        "threshold": Published(0.95, f"{OLIVER}; none in Lee 2013"),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled, unlabeled = batch["labeled"], batch["unlabeled"]
        images = torch.cat([labeled["weak"], unlabeled["weak"]])
        features = self.net.encode(noisy(images, self.options.input_noise, step.generator("noise both")))
        logits = self.net.classify(features)
        labeled_logits, unlabeled_logits = logits[: len(labeled.rows)], logits[len(labeled.rows) :]
        with torch.no_grad():
            label_logits = self.net.classifier(features[len(labeled.rows) :])
        loss, mask = self_label_loss(label_logits, unlabeled_logits, self.options.threshold)
        self.log("mask_rate", mask.float().mean())
        weight = self.options.unlabeled_weight * step.sigmoid_ramp(self.options.ramp)
        return {"ce": F.cross_entropy(labeled_logits, labeled.targets), "pseudo": weight * loss}
