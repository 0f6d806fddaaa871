"""SSB: FixMatch on everything, then a one-vs-all detector that mines its own negatives.

Classifier p and one-vs-all detector o (osp.parts.one_vs_all) have non-linear heads of their own. Two stages, one
schedule; h(x) is the mirrored view alone, s and s' are two strong ones:

    stage A  L = H(y, p(w(x))) + L_fm                     FixMatch on all pool images; the detector rests
    stage B  L = L_x + L_ova + λ_em L_em + λ_socr L_socr + L_fm + λ_pn L_pn

    L_x    = H(y, p), mean over w(x), h(x)
    L_ova  = mean over w(x), h(x) of -ln o_y  +  mean over w(x), h(x), s(x), s'(x) of (1 / K) Σ_{k ≠ y} -ln (1 - o_k)
    L_pn   = mean_i Σ_k 1[o_k(w(v_i)) <= θ] (-ln (1 - o_k(s(v_i))))           pseudo-negatives, one by image and class
    L_em, L_socr as in OpenMatch, on w(v) and h(v)
    L_fm   = (1 / n) Σ_i 1[max q_i >= τ] H(argmax q_i, p(s(u_i)))             on images u drawn independently of v

No image is filtered out. OOD score: 1 - o_c for the predicted class c.

Reference: Fan et al., SSB: Simple but Strong Baseline for Boosting Performance of Open-Set Semi-Supervised Learning,
ICCV 2023. Differences from the release:

- stage B takes 7.2 % of the run but at least `detector_steps` steps (and at most half of the run): the detector starts
  at random, and where it has no time to become sure there are no pseudo-negatives;
- half-way through stage B the averaged weights of the detector start again from the trained ones: in a run of some
  thousand steps the average would else report the random start of the detector;
- all views go in one pass but w(u), which are labeled as in our FixMatch, without a graph and with the running
  statistics of batch norms; the release has a second pass for w(u) and s(u);
- a second strong view of v, which enters no loss there, is left out;
- on stored features of a frozen backbone the classifier is linear.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import fixmatch_optimizer
from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.methods.fixmatch import labeling_logits, pseudo_label_loss, three_looks
from osp.nets import Network
from osp.parts.matching import binary_entropy
from osp.parts.one_vs_all import all_negatives_loss, linear_layers, positive_loss, soft_consistency
from osp.scores.one_vs_all import OneVsAllScore

RELEASE = "SSB release"


class SSBOptions(Options):
    hidden: int = Field(1024, ge=1, le=65536, description="units of both hidden layers of each head")
    detector_share: float = Field(0.072, gt=0, le=0.5, description="share of the run in which the detector is trained")
    detector_steps: int = Field(500, ge=0, description="least number of steps for it, up to half of the run")
    threshold: float = Field(0.95, ge=0, le=1, description="τ: confidence from which a prediction becomes a label")
    negative_below: float = Field(
        0.01, ge=0, le=1, description="θ: probability up to which an image is a pseudo-negative of a class"
    )
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of L_fm")
    entropy_weight: float = Field(0.1, ge=0, description="weight of L_em")
    socr_weight: float = Field(0.5, ge=0, description="weight of L_socr, which grows with the number of classes")
    negative_weight: float = Field(1.0, ge=0, description="weight of L_pn, which grows with the number of classes")


def pseudo_negative_loss(weak_margins: Tensor, strong_margins: Tensor, negative_below: float) -> tuple[Tensor, Tensor]:
    """L_pn = mean_i Σ_k M_ik (-ln (1 - o_k(s(v_i)))) with M_ik = 1[o_k(w(v_i)) <= θ], and M.

    >>> loss, mask = pseudo_negative_loss(torch.tensor([[-9.0, 0.0]]), torch.zeros(1, 2), 0.01)
    >>> round(loss.item(), 4), mask.tolist()  # ln 2 for one of two classes
    (0.6931, [[True, False]])
    """
    mask = weak_margins.detach().sigmoid() <= negative_below
    return torch.where(mask, F.softplus(strong_margins), 0.0).sum(dim=1).mean(), mask


class SSB(Method):
    name = "ssb"
    summary = "FixMatch on all images, then a one-vs-all detector with pseudo-negatives"
    reference = "Fan et al., SSB, ICCV 2023"
    Options = SSBOptions
    mechanism = ("mask_rate", "negative_rate")
    paper_steps = 2**19
    paper_data = ("cifar10", "cifar100")
    paper: ClassVar[dict[str, Published]] = {
        **fixmatch_optimizer(RELEASE),
        **Published.all(RELEASE, mu=2, threshold=0.95, negative_below=0.01),
        **Published.all(RELEASE, unlabeled_weight=1.0, entropy_weight=0.1, negative_weight=1.0),
        "socr_weight": Published(0.5, RELEASE, {"cifar100": 1.0}),
        "hidden": Published(1024, f"{RELEASE} (4,096 on ImageNet-30)"),
        "detector_share": Published(37 / 512, f"{RELEASE}: 37 of 512 epochs"),
        "detector_steps": Published(0, "off: not in the publication"),
    }
    own_score: OneVsAllScore
    """Its head is o."""

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        hidden = (options.hidden, options.hidden)
        if len(task.shape) == 3:  # on stored features the adapter is what is non-linear, and a linear head its start
            network.add_module("classifier", linear_layers([network.feature_dim, *hidden, task.num_classes]))
        self.use_score(OneVsAllScore(network.feature_dim, task.num_classes, hidden))

    # Declarations

    def stages(self) -> list[Stage]:
        o = self.options
        share = max(o.detector_share, min(o.detector_steps / self.task.steps, 0.5))
        detect = self.stage(name="detect", share=share, refresh=0.5, continues=True)
        return [self.stage(name="classify", share=1 - share), detect]

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        o = self.options
        unlabeled = StreamSpec("unlabeled", o.batch * o.mu, ("weak", "strong"))
        if stage.name == "classify":
            return {"labeled": StreamSpec("labeled", o.batch, ("weak",)), "unlabeled": unlabeled}
        return {
            "labeled": StreamSpec("labeled", o.batch, ("weak", "flip", "strong", "strong2")),
            "unlabeled": unlabeled,
            "pool": StreamSpec("unlabeled", o.batch * o.mu, ("weak", "flip", "strong")),
        }

    # Losses

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        return self.classifying(batch) if step.stage.name == "classify" else self.detecting(batch)

    def classifying(self, batch: Batch) -> dict[str, Tensor]:
        """Stage A: FixMatch."""
        labeled_logits, weak_logits, strong_logits = three_looks(self.net, batch, joint_weak=False)
        return {
            "ce": F.cross_entropy(labeled_logits, batch["labeled"].targets),
            "consistency": self.options.unlabeled_weight * self.fixmatch(weak_logits, strong_logits),
        }

    def detecting(self, batch: Batch) -> dict[str, Tensor]:
        """Stage B: FixMatch goes on, and the detector learns."""
        o, labeled, pool, unlabeled = self.options, batch["labeled"], batch["pool"], batch["unlabeled"]
        weak_logits = labeling_logits(self.net, unlabeled["weak"])
        views = [labeled[view] for view in ("weak", "flip", "strong", "strong2")]
        views += [pool["weak"], pool["flip"], pool["strong"], unlabeled["strong"]]
        *learned, strong = torch.split(self.net.encode(torch.cat(views)), [len(view) for view in views])
        margins = torch.split(self.own_score.head(torch.cat(learned)), [len(features) for features in learned])
        known, (weak, mirrored, hard) = margins[:4], margins[4:]
        logits = self.net.classify(torch.cat([*learned[:2], strong])).float()
        two = 2 * len(labeled.rows)
        negative, mask = pseudo_negative_loss(weak, hard, o.negative_below)
        self.log("negative_rate", mask.float().mean())
        return {
            "ce": F.cross_entropy(logits[:two], labeled.targets.repeat(2)),
            "ova": positive_loss(torch.cat(known[:2]), labeled.targets.repeat(2))
            + all_negatives_loss(torch.cat(known), labeled.targets.repeat(4)),
            "entropy": o.entropy_weight * (binary_entropy(weak).mean() + binary_entropy(mirrored).mean()) / 2,
            "socr": o.socr_weight * soft_consistency(weak, mirrored),
            "negative": o.negative_weight * negative,
            "consistency": o.unlabeled_weight * self.fixmatch(weak_logits, logits[two:]),
        }

    def fixmatch(self, weak_logits: Tensor, strong_logits: Tensor) -> Tensor:
        """L_fm."""
        loss, mask = pseudo_label_loss(weak_logits, strong_logits, self.options.threshold)
        self.log("mask_rate", mask.mean())
        return loss

    # The detector

    def refresh(self, step: Step, pool: Pool) -> None:
        """At the start of stage B, where it changes nothing yet, and half-way through it."""
        pool.restart_average("own_score.head.")
