"""UDA: the sharpened prediction on a weak view is what the strong view must give, where the prediction is confident.

    q = softmax(f(w(u)) / T) without gradient,  m = 1[max softmax(f(w(u))) >= threshold]
    L_u = (1 / μB) Σ_i m_i KL(q_i ‖ p(s(u_i))),  L = mean_B H(y, p(w(x))) + weight · L_u

The confidence is that of the unsharpened prediction. Training signal annealing (`annealing`) takes labeled images out
of the mean once p_y exceeds η(t) = a(t) (1 - 1/K) + 1/K, with a(t) = 1 - exp(-5t), t or exp(5(t - 1)) for t from 0 to
1. Reference: Xie et al., Unsupervised Data Augmentation for Consistency Training, NeurIPS 2020. OOD score: 1 - max
softmax.

Passes: w(u) without a graph and as in testing, with the running statistics of batch norms and without dropout; then
[w(x); s(u)] jointly. With `joint_weak`, in the paper preset, all three in one, so that targets depend on the batch.

Differences from T2T's release, most likely the source of the numbers in the OSP paper: it divides L_u by the number of
confident images (`least_share=0`, in the paper preset), which in a short run lets the first few of them weigh as much
as a whole batch; and it has the one pass for all.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import t2t_optimizer
from osp.methods.base import Batch, Method, Options, Published, Sample, Step
from osp.parts.consistency import sharpened_consistency
from osp.parts.reduce import masked_mean

RELEASE = "T2T release, which has UDA; the OSP paper gives 250,000 iterations only"

Annealing = Literal["off", "log", "linear", "exp"]


class UDAOptions(Options):
    temperature: float = Field(0.4, gt=0, description="sharpening of the targets")
    threshold: float = Field(0.8, ge=0, le=1, description="confidence from which an image enters L_u")
    least_share: float = Field(
        1.0, ge=0, le=1, description="share of the batch that confident images count as, at least, in the mean L_u"
    )
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of L_u")
    annealing: Annealing = Field(
        "off", description="training signal annealing: how the confidence allowed on labeled images rises"
    )
    joint_weak: bool = Field(False, description="weak views in one pass with the others, with an unneeded graph")


def annealed_confidence(progress: float, num_classes: int, annealing: Annealing) -> float:
    """η(t), the confidence in its label above which a labeled image is left out; t is the share of the run passed.

    >>> annealed_confidence(0.5, 4, "linear")
    0.625
    """
    share = {
        "off": 1.0,
        "log": 1 - math.exp(-5 * progress),
        "linear": progress,
        "exp": math.exp(5 * (progress - 1)),
    }[annealing]
    return share * (1 - 1 / num_classes) + 1 / num_classes


def annealed_cross_entropy(logits: Tensor, labels: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    """Mean of H(y, p) over the images with p_y <= confidence (0 where there is none), and which images those are."""
    each = F.cross_entropy(logits.float(), labels, reduction="none")
    mask = (-each.detach()).exp() <= confidence
    return masked_mean(each, mask), mask


class UDA(Method):
    name = "uda"
    summary = "sharpened confident predictions on weak views are targets for strong views"
    reference = "Xie et al., Unsupervised Data Augmentation for Consistency Training, NeurIPS 2020"
    Options = UDAOptions
    unlabeled_views = ("weak", "strong")
    mechanism = ("mask_rate",)
    paper = {  # noqa: RUF012
        **t2t_optimizer(RELEASE),
        **Published.all(RELEASE, temperature=0.4, threshold=0.8, least_share=0.0, unlabeled_weight=1.0),
        "annealing": Published("off", f"{RELEASE}; an option of the UDA paper"),
        "joint_weak": Published(True, RELEASE),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o, labeled, unlabeled = self.options, batch["labeled"], batch["unlabeled"]
        labeled_logits, weak_logits, strong_logits = self.looks(labeled["weak"], unlabeled)
        consistency, mask = sharpened_consistency(weak_logits, strong_logits, o.temperature, o.threshold, o.least_share)
        self.log("mask_rate", mask.float().mean())
        return {
            "ce": self.labeled_loss(labeled_logits, labeled.targets, step),
            "consistency": o.unlabeled_weight * consistency,
        }

    def looks(self, known: Tensor, unlabeled: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of labeled, weak and strong views; those of the weak ones without a graph and without dropout."""
        joint = self.options.joint_weak
        tested = None if joint else self.net.encode_as_tested(unlabeled["weak"])
        views = [known, unlabeled["strong"], *([unlabeled["weak"]] if joint else [])]
        first, second, *weak = torch.split(self.net.encode(torch.cat(views)), [len(view) for view in views])
        targets = self.net.classifier(weak[0] if tested is None else tested).detach().float()
        labeled, strong = torch.tensor_split(self.net.classify(torch.cat([first, second])).float(), [len(known)])
        return labeled, targets, strong

    def labeled_loss(self, logits: Tensor, labels: Tensor, step: Step) -> Tensor:
        if self.options.annealing == "off":
            return F.cross_entropy(logits, labels)
        confidence = annealed_confidence(step.progress, self.task.num_classes, self.options.annealing)
        loss, mask = annealed_cross_entropy(logits, labels, confidence)
        self.log("labeled_rate", mask.float().mean())
        return loss
