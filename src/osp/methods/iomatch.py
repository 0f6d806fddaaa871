"""IOMatch: inliers and outliers are learned together by an open-set classifier with one class more.

On the features z: a classifier p; on a projection g(z): a one-vs-all head o (osp.parts.one_vs_all) and an open-set
classifier q of K + 1 classes, the last of which is "unseen". With targets from the weak view, without gradient:

    p̃ = A(p(w(u)))          distribution alignment A where there are many classes
    S = Σ_k p̃_k (1 - o_k)    how likely u belongs to no class
    q̃ = (p̃_1 o_1, ..., p̃_K o_K, S)     sums to one

    L_s  = mean_B H(y, p(w(x)))
    L_mb = mean_B [-ln o_y - ln (1 - o_k)] with k the hardest other class
    L_ui = (1 / μB) Σ_i 1[max p̃_i >= τ_p] 1[S_i < 1/2] H(p̃_i, p(s(u_i)))
    L_op = (1 / μB) Σ_i 1[max q̃_i >= τ_q] H(q̃_i, q(s(u_i)))
    L    = L_s + λ_mb L_mb + λ_ui L_ui + λ_op L_op

The targets stay soft. o learns from L_mb alone and q from L_op alone. A keeps the means of p over the last batches and
divides by their mean: A(p) ∝ p · (1/K) / (mean of the means). It pulls predictions to equal shares of all classes. The
authors leave it out on CIFAR-10; here it is on from 20 classes up. OOD score: q_{K+1}, the answer of the open-set
classifier (the paper defines no score).

Reference: Li et al., IOMatch: Simplifying Open-Set Semi-Supervised Learning with Joint Inliers and Outliers
Utilization, ICCV 2023. Differences from the release:

- w(x) and s(u) go in one pass; w(u) go without a graph and as in testing, without dropout and with the running
  statistics of batch norms; the release has one pass for all three;
- the projection has 128 units whatever the size of the features (128 in the networks of the release);
- L_op starts after 5 % of the run (release: after 0.4 % of 2¹⁸ steps): before, o is near one half and its targets too.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.distributed import gathered
from osp.methods._published import fixmatch_optimizer
from osp.methods.base import Batch, Method, Options, Published, Step, Task
from osp.nets import Network
from osp.parts.one_vs_all import one_vs_all_loss
from osp.parts.reduce import masked_mean
from osp.scores.open_set import OpenSetScore

PAPER = "paper and release"
RELEASE = "IOMatch release"
MANY_CLASSES = 20
EPSILON = 1e-6


class IOMatchOptions(Options):
    threshold: float = Field(0.95, ge=0, le=1, description="τ_p: confidence from which an inlier enters L_ui")
    open_threshold: float = Field(0.5, ge=0, le=1, description="τ_q: the same of the open-set targets and L_op")
    binary_weight: float = Field(1.0, ge=0, description="weight of L_mb")
    inlier_weight: float = Field(1.0, ge=0, description="weight of L_ui")
    open_weight: float = Field(1.0, ge=0, description="weight of L_op")
    open_from: float = Field(0.05, ge=0, lt=1, description="share of the run before L_op starts")
    align: bool | None = Field(None, description="distribution alignment; from 20 classes up if not set")
    align_batches: int = Field(
        128, ge=1, le=100_000, description="batches whose predictions are averaged for alignment"
    )
    projection: int = Field(
        128, ge=1, le=65536, description="units of the layers before the detector and the open-set classifier"
    )


def open_targets(probabilities: Tensor, inside: Tensor) -> Tensor:
    """q̃ = (p̃_1 o_1, ..., p̃_K o_K, Σ_k p̃_k (1 - o_k)), N×(K+1).

    >>> open_targets(torch.tensor([[0.75, 0.25]]), torch.tensor([[1.0, 0.0]])).tolist()
    [[0.75, 0.0, 0.25]]
    """
    unseen = (probabilities * (1 - inside)).sum(dim=1, keepdim=True)
    return torch.cat([probabilities * inside, unseen], dim=1)


def aligned(probabilities: Tensor, marginal: Tensor) -> Tensor:
    """p_k (1/K + ε) / (m_k + ε), normalized to sum to one; ε = 1e-6.

    >>> aligned(torch.tensor([[0.5, 0.5]]), torch.tensor([0.75, 0.25]))
    tensor([[0.2500, 0.7500]])
    """
    scaled = probabilities * (1 / probabilities.shape[1] + EPSILON) / (marginal + EPSILON)
    return scaled / scaled.sum(dim=1, keepdim=True)


class IOMatch(Method):
    name = "iomatch"
    summary = "a classifier with one class more learns inliers and outliers together"
    reference = "Li et al., IOMatch, ICCV 2023"
    Options = IOMatchOptions
    unlabeled_views = ("weak", "strong")
    mechanism = ("inlier_rate", "open_rate")
    paper_steps = 2**18
    paper_data = ("cifar10", "cifar100")
    paper: ClassVar[dict[str, Published]] = {
        **fixmatch_optimizer(RELEASE),
        "weight_decay": Published(5e-4, f"{RELEASE}; 3e-4 on ImageNet-30", {"cifar100": 1e-3}),
        **Published.all(PAPER, batch=64, mu=7, threshold=0.95, open_threshold=0.5),
        **Published.all(PAPER, binary_weight=1.0, inlier_weight=1.0, open_weight=1.0),
        "open_from": Published(1 / 256, f"{RELEASE}: off in the first of 256 epochs (paper: never off)"),
        "align": Published(None, f"{PAPER}: on for CIFAR-100 and ImageNet-30, off for CIFAR-10"),
        **Published.all(RELEASE, align_batches=128, projection=128),
    }
    own_score: OpenSetScore
    """g, o and q."""
    marginals: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.use_score(OpenSetScore(network.feature_dim, task.num_classes, options.projection))
        self.aligns = task.num_classes >= MANY_CLASSES if options.align is None else options.align
        rows = options.align_batches if self.aligns else 0
        self.register_buffer("marginals", torch.zeros(rows, task.num_classes))  # mean prediction of the last batches

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o, heads, labeled, unlabeled = self.options, self.own_score, batch["labeled"], batch["unlabeled"]
        split = len(labeled.rows)
        with torch.no_grad():
            probabilities, open_target = self.targets(unlabeled["weak"], step)
        features = self.net.encode(torch.cat([labeled["weak"], unlabeled["strong"]]))
        logits, projected = self.net.classify(features).float(), heads.projection(features)
        margins, open_logits = heads.detector(projected[:split]), heads.open_classifier(projected[split:]).float()

        unseen = open_target[:, -1]
        inlier = (probabilities.amax(dim=1) >= o.threshold) & (unseen < 0.5)
        confident = open_target.amax(dim=1) >= o.open_threshold
        starts = float(step.progress >= o.open_from)
        self.log("inlier_rate", inlier.float().mean())
        self.log("open_rate", starts * confident.float().mean())
        self.log("outlier_rate", (unseen >= 0.5).float().mean())
        inlier_loss = F.cross_entropy(logits[split:], probabilities, reduction="none")
        open_loss = F.cross_entropy(open_logits, open_target, reduction="none")
        return {
            "ce": F.cross_entropy(logits[:split], labeled.targets),
            "binary": o.binary_weight * one_vs_all_loss(margins, labeled.targets),
            "inlier": o.inlier_weight * masked_mean(inlier_loss, inlier, least=1.0),
            "open": starts * o.open_weight * masked_mean(open_loss, confident, least=1.0),
        }

    def targets(self, weak: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """p̃ and q̃."""
        features = self.net.encode_as_tested(weak)
        probabilities = self.net.classifier(features).float().softmax(dim=1)
        if self.aligns:
            self.marginals[step.index % len(self.marginals)] = gathered(probabilities).mean(dim=0)
            probabilities = aligned(probabilities, self.marginals.mean(dim=0))
        margins = self.own_score.detector(self.own_score.projection(features))
        return probabilities, open_targets(probabilities, margins.sigmoid())
