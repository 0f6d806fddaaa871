"""FixMatch: confident predictions on weak views become labels for strong views.

    q = softmax(f(w(u))) without gradient,  ŷ = argmax q,  m = 1[max q >= threshold]
    L = mean_B H(y, p(w(x))) + weight · (1 / μB) Σ_i m_i H(ŷ_i, p(s(u_i)))

The mean runs over all μB unlabeled images, masked ones counting as zero. Reference: Sohn et al., FixMatch, NeurIPS
2020. It has no notion of OOD images: they receive confident wrong labels. OOD score: 1 - max softmax of the averaged
weights.

Differences from the release: the weak views go through the encoder without a graph and with the running statistics of
batch norms (the release puts labeled, weak and strong images through one pass and throws the weak gradients away:
`joint_weak`, in the paper preset); and the averaged weights forget their random start (the decay rises to its value),
which a run of a million steps would not notice.

Where the network has dropout (the published ones have none), the labels are drawn with it, here and in what builds on
FixMatch: without it fewer doubtful images are left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import fixmatch_optimizer
from osp.methods.base import Batch, Method, Options, Published, Step
from osp.nets import Network

FIXMATCH = "FixMatch paper"


class FixMatchOptions(Options):
    threshold: float = Field(0.95, ge=0, le=1, description="confidence from which a prediction becomes a label")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of the unlabeled loss")
    joint_weak: bool = Field(False, description="weak views in one pass with the others, with an unneeded graph")


def pseudo_label_loss(weak_logits: Tensor, strong_logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """(1 / n) Σ_i 1[max q_i >= threshold] H(argmax q_i, p(s(u_i))) with q = softmax(weak logits), and the mask.

    >>> weak, strong = torch.tensor([[9.0, 0.0], [0.1, 0.0]]), torch.zeros(2, 2)
    >>> loss, mask = pseudo_label_loss(weak, strong, 0.95)
    >>> round(loss.item(), 4), mask.tolist()  # ln 2 / 2: one of two images counts
    (0.3466, [1.0, 0.0])
    """
    confidence, labels = weak_logits.detach().softmax(dim=1).max(dim=1)
    mask = (confidence >= threshold).to(strong_logits.dtype)
    return (mask * F.cross_entropy(strong_logits, labels, reduction="none")).mean(), mask


def labeling_logits(net: Network, weak: Tensor) -> Tensor:
    """What weak views are labeled by: without a graph, with the running statistics of batch norms, with dropout."""
    with torch.no_grad():
        return net.classify(net.encode_as_tested(weak)).float()


def three_looks(net: Network, batch: Batch, joint_weak: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of labeled, weak and strong views, the weak ones for labels.

    Labeled and strong views go in one pass. Weak ones go as `labeling_logits` says, or in the same pass (`joint_weak`,
    as in the releases): then labels depend on the batch.
    """
    labeled, weak, strong = batch["labeled"]["weak"], batch["unlabeled"]["weak"], batch["unlabeled"]["strong"]
    labels = [] if joint_weak else [labeling_logits(net, weak)]
    views = [labeled, strong, weak] if joint_weak else [labeled, strong]
    looks = torch.split(net(torch.cat(views)).float(), [len(view) for view in views])
    return looks[0], (looks[2:] or labels)[0].detach(), looks[1]


class FixMatch(Method):
    name = "fixmatch"
    summary = "confident predictions on weak views label the strong views"
    reference = "Sohn et al., FixMatch, NeurIPS 2020"
    Options = FixMatchOptions
    unlabeled_views = ("weak", "strong")
    mechanism = ("mask_rate",)
    paper_data = ("cifar10", "cifar100", "stl10")
    paper = {  # noqa: RUF012
        **fixmatch_optimizer(FIXMATCH, cifar100_decay=1e-3),
        "mu": Published(7, f"{FIXMATCH}; the OSP paper does not state it"),
        **Published.all("FixMatch release", nesterov=True, decay_all=False, joint_weak=True),
        **Published.all(FIXMATCH, threshold=0.95, unlabeled_weight=1.0),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled_logits, weak_logits, strong_logits = three_looks(self.net, batch, self.options.joint_weak)
        consistency, mask = pseudo_label_loss(weak_logits, strong_logits, self.options.threshold)
        self.log("mask_rate", mask.mean())
        return {
            "ce": F.cross_entropy(labeled_logits, batch["labeled"].targets),
            "consistency": self.options.unlabeled_weight * consistency,
        }
