"""DAC: heads that are pushed apart agree on inliers and disagree on outliers.

Beside the classifier p, H linear heads p_h on a projection g of the features; no gradient of the heads' losses reaches
the encoder. With weak views w, w' and strong views s:

    L_s   = H(y, p), mean over w(x), w'(x)
    L_h   = H(y, p_h), mean over heads and w(x), w'(x)
    L_reg = (1 / HμB) Σ_h,i 1[max p_h(w(u_i)) >= τ_h] H(argmax p_h(w(u_i)), p_h(s(u_i)))
    L_mi  = mean over pairs of heads of their mutual information on w(u)              osp.parts.disagreement

    a_i = exp(-D(w(u_i)))       D the mean distance between the answers of two heads
    s_i = running average of a_i, scaled to 0 ... 1 over the pool                      osp.parts.memory
    θ   = Otsu's threshold of all s_i,  ω_i = min((s_i / θ)^γ, 1)
    t_i = (s_i p(w(u_i)), 1 - s_i)                 K + 1 targets, the last for "none of the classes"
    q_i = Σ_r softmax_r(v(s(u_i)) · v_r / T) t_r   over the last v_r = g(w(u_r)) / |g(w(u_r))|     osp.parts.memory

    L_u   = (1 / μB) Σ_i ω_i 1[max p(w(u_i)) >= τ] H(argmax p(w(u_i)), p(s(u_i)))
    L_kd  = mean_i H(t_i, q_i)
    L     = L_s + L_h + λ_reg L_reg + λ_mi L_mi + λ_u L_u + λ_kd L_kd

All targets are without gradient. L_u and L_kd start late. OOD score: D.

Reference: Kong et al., Diversify and Conquer: Open-set Disagreement for Robust Semi-supervised Learning with Outliers,
TNNLS 2025. The formulas are those of its release, heejokong/DivCon. Differences from it:

- w(x), w'(x) and s(u) go in one pass; w(u) go without a graph, which none of the losses needs, and as in testing, with
  the running statistics of batch norms; the release has one pass for all;
- no layer norm between encoder and classifier, as for all methods here; the projection keeps it, without its affine
  part, which the next layer can make up for;
- the averages s_i forget that they start at 0, and images not seen yet count neither for the scale nor for θ;
- the memory is empty at first; the release has random rows without targets in it;
- by default θ is found a hundred times a run instead of at each step, L_u and L_kd start after 5 % of the run (release:
  0.4 % of 2¹⁸ steps), and the memory holds 16 batches instead of 256, which would cost a CPU more than a network;
- the release's distribution alignment and confidence in a_i are off in all of its settings and left out, its rotation
  head is unused.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import fixmatch_optimizer
from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.methods.fixmatch import pseudo_label_loss
from osp.nets import Network
from osp.parts.disagreement import disagreement, mutual_information
from osp.parts.memory import EmbeddingMemory, PoolAverage
from osp.parts.partition import otsu_threshold
from osp.scores.disagreement import DisagreementScore

RELEASE = "DAC release"


class DACOptions(Options):
    heads: int = Field(10, ge=2, le=1000, description="H: number of heads that are pushed apart")
    projection: int = Field(128, ge=1, le=65536, description="units of the projection that heads and memory see")
    threshold: float = Field(0.95, ge=0, le=1, description="τ: confidence from which a prediction becomes a label")
    head_threshold: float = Field(0.95, ge=0, le=1, description="τ_h: the same for the heads")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of L_u")
    head_weight: float = Field(1.0, ge=0, description="weight of L_reg")
    diversity_weight: float = Field(0.05, ge=0, description="weight of L_mi")
    open_weight: float = Field(1.5, ge=0, description="weight of L_kd")
    start: float = Field(0.05, ge=0, lt=1, description="share of the run before L_u and L_kd start")
    decay: float = Field(0.9, ge=0, lt=1, description="decay of the running averages s_i")
    sharpness: float = Field(1.5, ge=0, description="γ: exponent of the weights ω_i")
    threshold_every: float = Field(0.01, gt=0, le=1, description="share of the run after which θ is found again")
    temperature: float = Field(0.1, gt=0, description="T: temperature of the similarities in L_kd")
    memory_batches: int = Field(16, ge=1, le=100_000, description="unlabeled batches whose projections are remembered")


def inlier_weights(averages: Tensor, threshold: Tensor, sharpness: float) -> Tensor:
    """ω_i = min((s_i / θ)^γ, 1).

    >>> inlier_weights(torch.tensor([0.0, 0.125, 0.5, 0.9]), torch.tensor(0.5), 1.5).tolist()
    [0.0, 0.125, 1.0, 1.0]
    """
    return (averages / threshold.clamp(min=1e-8)).clamp(max=1.0) ** sharpness


def open_targets(probabilities: Tensor, averages: Tensor) -> Tensor:
    """t_i = (s_i p_i1, ..., s_i p_iK, 1 - s_i), N×(K+1).

    >>> open_targets(torch.tensor([[0.75, 0.25]]), torch.tensor([0.5])).tolist()
    [[0.375, 0.125, 0.5]]
    """
    return torch.cat([averages[:, None] * probabilities, 1 - averages[:, None]], dim=1)


class DAC(Method):
    name = "dac"
    summary = "heads pushed apart: where they disagree, an image counts less"
    reference = "Kong et al., Diversify and Conquer, TNNLS 2025"
    Options = DACOptions
    mechanism = ("weighted_rate", "head_rate", "disagreement")
    labeled_views = 2
    paper_data = ("cifar10", "cifar100")
    paper_steps = 2**18
    paper: ClassVar[dict[str, Published]] = {
        **fixmatch_optimizer(RELEASE, cifar100_decay=1e-3),
        **Published.all(RELEASE, mu=7, heads=10, projection=128, threshold=0.95, head_threshold=0.95),
        **Published.all(RELEASE, unlabeled_weight=1.0, head_weight=1.0, open_weight=1.5),
        **Published.all(RELEASE, decay=0.9, sharpness=1.5, temperature=0.1, memory_batches=256),
        "diversity_weight": Published(
            0.05, f"{RELEASE}, tuned after the paper's tables were made; 0.1 on CIFAR-100", {"cifar100": 0.1}
        ),
        "start": Published(1 / 256, f"{RELEASE}: the first of 256 epochs"),
        "threshold_every": Published(2**-18, f"{RELEASE}: at each step"),
    }
    own_score: DisagreementScore
    """g and all p_h."""
    otsu: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.use_score(DisagreementScore(network.feature_dim, task.num_classes, options.heads, options.projection))
        self.averages = PoolAverage(task.num_unlabeled, options.decay)
        rows = options.memory_batches * options.batch * options.mu
        self.memory = EmbeddingMemory(options.projection, task.num_classes + 1, rows)
        self.register_buffer("otsu", torch.zeros(()))  # θ
        self.remembered: tuple[Tensor, Tensor] | None = None  # by `losses`, for `after_step`

    # Declarations

    def stages(self) -> list[Stage]:
        return [self.stage(refresh=self.options.threshold_every)]

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        o = self.options
        return {
            "labeled": StreamSpec("labeled", o.batch, ("weak", "weak2")),
            "unlabeled": StreamSpec("unlabeled", o.batch * o.mu, ("weak", "strong")),
        }

    # Losses

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o, labeled, unlabeled = self.options, batch["labeled"], batch["unlabeled"]
        weak = self.net.encode_as_tested(unlabeled["weak"])
        features = self.net.encode(torch.cat([labeled["weak"], labeled["weak2"], unlabeled["strong"]]))
        two, labels = 2 * len(labeled.rows), labeled.targets.repeat(2)
        logits = self.net.classify(features).float()
        heads = self.own_score.head_logits(torch.cat([features.detach(), weak]))
        known, strong_heads, weak_heads = heads.tensor_split([two, len(features)])
        answers = weak_heads.softmax(dim=2)
        head_loss, head_mask = pseudo_label_loss(weak_heads.flatten(0, 1), strong_heads.flatten(0, 1), o.head_threshold)
        information = mutual_information(answers)
        terms = {
            "ce": F.cross_entropy(logits[:two], labels),
            "heads": F.cross_entropy(known.flatten(0, 1), labels.repeat_interleave(o.heads)),
            "head_consistency": o.head_weight * head_loss,
            "diversity": o.diversity_weight * information,
        }
        with torch.no_grad():
            disagreed = disagreement(answers)
            self.averages.update(unlabeled.rows, (-disagreed).exp())
            averages = self.averages.values()[unlabeled.rows]
            weak_logits = self.net.classifier(weak).float()
            targets = open_targets(weak_logits.softmax(dim=1), averages)
            self.remembered = self.embedded(weak), targets
        if step.progress >= o.start:
            weights = inlier_weights(averages, self.otsu, o.sharpness)
            terms |= self.open_terms(features[two:], logits[two:], weak_logits, weights, targets)
        self.log("head_rate", head_mask.mean())
        self.log("disagreement", disagreed.mean())
        self.log("mutual_information", information)
        return terms

    def open_terms(
        self, strong: Tensor, strong_logits: Tensor, weak_logits: Tensor, weights: Tensor, targets: Tensor
    ) -> dict[str, Tensor]:
        """L_u and L_kd, the losses of the encoder on unlabeled images."""
        o = self.options
        confidence, labels = weak_logits.softmax(dim=1).max(dim=1)
        weights = weights * (confidence >= o.threshold)
        self.log("weighted_rate", weights.mean())
        loss = (weights * F.cross_entropy(strong_logits, labels, reduction="none")).mean()
        terms = {"consistency": o.unlabeled_weight * loss}
        if len(self.memory):
            predicted = self.memory.predict(self.embedded(strong), o.temperature)
            likelihood = predicted.clamp(min=torch.finfo(predicted.dtype).tiny).log()
            terms["open"] = -o.open_weight * (targets * likelihood).sum(dim=1).mean()
        return terms

    def embedded(self, features: Tensor) -> Tensor:
        """v = g(z) / |g(z)|."""
        return F.normalize(self.own_score.projection(features).float(), dim=1)

    def after_step(self, batch: Batch, step: Step) -> None:
        assert self.remembered is not None
        self.memory.push(*self.remembered)
        self.remembered = None

    # The partition

    def refresh(self, step: Step, pool: Pool) -> None:
        """θ from the images seen so far."""
        values = self.averages.values()[self.averages.seen]
        if len(values) and bool(values.isfinite().all()):  # else the next line of the log says what is wrong
            self.otsu.fill_(otsu_threshold(values))
            self.log("otsu", self.otsu)

    def kept(self) -> Tensor | None:
        """The unlabeled images whose ω_i is 1."""
        return self.averages.values() >= self.otsu
