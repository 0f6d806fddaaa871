"""OSP, Out-of-distributed Semantic Pruning: T2T plus two modules that prune OOD semantics out of ID features.

    fine-tuning  L = L_t2t + L_odc^l + L_odc^u                                                       (Eq. 15)

1. *Aliasing OOD matching*: images set aside and doubtful (`recyclable`) go, by predicted class, into the queues of
   `osp.parts.OODBank` (Eq. 5); every confident ID feature z (anchor, Eq. 2-4) of class c is paired with a random OOD
   feature o of queue c (Eq. 6).
2. *Soft orthogonality*: the pruned feature z_r = z - α (z·o/‖o‖²) o (Eq. 8) must be classified as z is (Eq. 9, 10).

Inference uses encoder and classifier alone. Reference: Wang et al., Out-of-Distributed Semantic Pruning for Robust
Semi-Supervised Learning, CVPR 2023. OOD score: 1 - S as in T2T.

What the paper leaves open is an option: see the descriptions in `OSPOptions` (`osp methods osp`). Two of its choices do
not work as printed: no image of a task with few classes has max p < 0.2, so `recyclable=quantile` is our default
(`absolute` is the printed rule); and the partition can feed on itself (see `osp.methods.t2t`, docs/osp.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from osp.distributed import gathered
from osp.methods.base import Batch, Pool, Published, Stage, Step, Task
from osp.methods.t2t import OURS, T2T, Encoded, T2TOptions
from osp.nets import Network
from osp.parts.bank import OODBank
from osp.parts.clusters import Clusters, aliasing_prototypes
from osp.parts.neighbors import Neighbors
from osp.parts.orthogonality import (
    labeled_anchors,
    labeled_orthogonality_loss,
    unlabeled_anchors,
    unlabeled_orthogonality_loss,
)
from osp.parts.partition import ranked
from osp.parts.pool_score import PoolAsked
from osp.parts.pruning import pruned_logits

UNSTATED = "not stated; release"
COSINE = "paper: cosine; 7/16 as in the release"
EPOCHS = 10
"""From one partition to the next (Algorithm 1)."""


class OSPOptions(T2TOptions):
    alpha: float = Field(0.8, ge=0, le=1, description="share of the OOD component that is pruned (Eq. 8)")
    delta: float = Field(0.8, ge=0, le=1, description="confidence from which an ID feature is an anchor (Eq. 2, 3)")
    odc_labeled: float = Field(1.0, ge=0, description="weight of L_odc^l; 0 is row 3 of Table 4")
    odc_unlabeled: float = Field(1.0, ge=0, description="weight of L_odc^u; 0 is row 2 of Table 4")
    match: Literal["class", "random", "prototype"] = Field(
        "class",
        description="pair anchors with OOD features of their class, of any (row 4 of Table 4), or with the cluster of "
        "the pool without labels that is most like their class (needs partition_by=pool or clusters)",
    )
    recyclable: Literal["quantile", "absolute"] = Field(
        "quantile", description="which set-aside images enter the bank: the least confident share, or max p < 0.2"
    )
    recyclable_share: float = Field(0.25, gt=0, le=1, description="`quantile`: this share of the set-aside images")
    recyclable_below: float = Field(0.2, gt=0, le=1, description="`absolute`: confidence below which (Eq. 5)")
    bank_feed: Literal["iteration", "epoch", "refresh", "both"] = Field(
        "refresh",
        description="fill the bank each step (the text), each epoch, a tenth of the time between two partitions "
        "(Algorithm 1), or at each partition (ours); both: each step and at each partition",
    )
    bank_capacity: int = Field(5000, ge=1, description="features per class")
    bank_total: int | None = Field(None, ge=1, description="features in all classes together")
    bank_half: bool = Field(False, description="store features in half precision")
    stop_gradient: bool = Field(True, description="no gradient into the unpruned prediction of L_odc")
    anchor_view: Literal["strong", "weak"] = Field("strong", description="view whose feature is pruned")
    odc_temperature: float = Field(1.0, gt=0, description="sharpening of the unpruned prediction in L_odc")
    noise: float = Field(0.1, ge=0, description="feature noise in pre-training, in standard deviations")
    removed: ClassVar[dict[str, Any]] = {"candidates": 8, "center": False, "compare": "weak"}

    @model_validator(mode="after")
    def _has_clusters(self) -> OSPOptions:
        if self.match == "prototype" and self.partition_by not in ("pool", "clusters"):
            raise ValueError("match=prototype needs partition_by=pool or clusters")
        return self


class OSP(T2T):
    name = "osp"
    summary = "T2T, and OOD semantics are pruned out of ID features"
    reference = "Wang et al., Out-of-Distributed Semantic Pruning for Robust SSL, CVPR 2023"
    Options = OSPOptions
    mechanism = ("kept_share", "consistency_rate", "bank_fill", "anchors_pruned")
    paper = {  # noqa: RUF012
        "pretrain_share": Published(0.2, "paper: 50,000 of 250,000"),
        **Published.all("paper", pretrain_lr=0.03, one_schedule=False, lr=0.001),
        **Published.all(COSINE, pretrain_schedule="cosine-7/16", schedule="cosine-7/16"),
        **Published.all("paper", optimizer="sgd", momentum=0.9, batch=64, mu=5, rotation_weight=1.0),
        **Published.all(UNSTATED, ema=None, nesterov=True, weight_decay=5e-4, decay_all=True),
        **Published.all(UNSTATED, pool_batch=64, rotation_pass="own", temperature=0.4, threshold=0.8),
        "least_share": Published(0.0),
        "ramp": Published(0.0, "paper: no ramp (release: 0.2)"),
        "refresh": Published(0.05, "paper: every 10 epochs; 200 epochs of 1,000 steps as in the release"),
        "joint_weak": Published(True, "not stated; T2T release"),
        **Published.all("paper", consistency_from="kept", partition_by="matching", cut_by="otsu"),
        "unlabeled_matching": Published("entropy", UNSTATED),
        **Published.all(OURS, id_share=None, doubtful=0.0, score_memory=0.0),
        "alpha": Published(0.8, "paper (release: 0.6)"),
        **Published.all("paper", delta=0.8, odc_labeled=1.0, odc_unlabeled=1.0, match="class"),
        **Published.all("paper", recyclable="absolute", recyclable_below=0.2),
        "bank_feed": Published("iteration", "paper's text (Algorithm 1: epoch)"),
        "bank_capacity": Published(5000, "paper; a class in the release"),
        **Published.all(UNSTATED, stop_gradient=True, anchor_view="strong"),
        "odc_temperature": Published(1.0, "paper (release: 0.4)"),
        "rotation_until": Published("finetune", "paper: Eq. 14 and 15"),
        "noise": Published(0.1, "not stated; ours; the paper asks for noise without a size"),
    }
    confidence_limit: Tensor
    prototypes: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        dtype = torch.float16 if options.bank_half else torch.float32
        self.bank = OODBank(
            task.num_classes, network.feature_dim, options.bank_capacity, options.bank_total, dtype=dtype
        )
        self.register_buffer("confidence_limit", torch.tensor(options.recyclable_below))
        self.register_buffer("prototypes", torch.zeros(task.num_classes, network.feature_dim))
        self.weak_graph = options.anchor_view == "weak"

    def artifacts(self) -> dict[str, dict[str, Tensor]]:
        """The bank, for the figures that show an anchor's partner."""
        return {"bank": self.bank.contents()}

    def finetuning(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Eq. 15, L_ft: L_t2t and, from the same features, L_odc; then the bank takes up the step's OOD images."""
        encoded = self.encode(batch)
        terms = self.t2t_terms(encoded, batch, step) | self.orthogonality_terms(encoded, batch["labeled"].targets, step)
        if self.options.bank_feed in ("iteration", "both"):
            self.feed_bank(encoded.pool, batch["pool"].rows)
        return terms

    def orthogonality_terms(self, encoded: Encoded, targets: Tensor, step: Step) -> dict[str, Tensor]:
        """Eq. 10, L_odc^l and L_odc^u, of the anchors of both kinds (Eq. 4) that have a partner in the bank."""
        o, classifier, n = self.options, self.net.classifier, len(targets)
        to_prune = encoded.weak if self.weak_graph else encoded.strong
        labeled_logits, its_logits = classifier(encoded.labeled), classifier(to_prune)
        unlabeled_anchor, predicted = unlabeled_anchors(encoded.weak_logits, o.delta)
        anchors = torch.cat([labeled_anchors(labeled_logits, targets, o.delta), unlabeled_anchor])
        partners, found = self.partners(torch.cat([targets, predicted]), step)
        features, usable = torch.cat([encoded.labeled, to_prune]), anchors & found
        pruned = pruned_logits(classifier, torch.cat([labeled_logits, its_logits]), features, partners, o.alpha)
        unlabeled_logits = its_logits if self.weak_graph else encoded.weak_logits
        if o.stop_gradient:
            labeled_logits, unlabeled_logits = labeled_logits.detach(), unlabeled_logits.detach()
        self.log("anchors_pruned", usable.float().mean())
        self.log("bank_fill", self.bank.counts.float().mean())
        self.log("bank_fill_least", self.bank.counts.amin().float())
        return {
            "odc_l": o.odc_labeled
            * labeled_orthogonality_loss(
                labeled_logits, pruned[:n], targets, usable[:n], o.odc_temperature, o.least_share
            ),
            "odc_u": o.odc_unlabeled
            * step.linear_ramp(o.ramp)
            * unlabeled_orthogonality_loss(unlabeled_logits, pruned[n:], usable[n:], o.odc_temperature, o.least_share),
        }

    def partners(self, classes: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Eq. 6: an OOD feature for each anchor, of its class, of any, or a prototype; and whether there is one."""
        if self.options.match == "prototype":
            partners = self.prototypes[classes]
            return partners, partners.any(dim=1)
        draws = step.generator("bank")
        if self.options.match == "random":
            return self.bank.sample_any(len(classes), draws)
        return self.bank.sample(classes, draws)

    def feed_bank(self, features: Tensor, rows: Tensor) -> None:
        """Eq. 5: push the recyclable OOD images among these rows of the pool."""
        with torch.no_grad():
            confidence, predicted = self.net.classifier(features).softmax(dim=1).max(dim=1)
            recyclable = self.aside_rows[rows] & (confidence < self.confidence_limit)
        self.bank.push(*(gathered(each) for each in (features, predicted, rows, recyclable)))

    def feeds(self) -> int:
        """How often the bank is filled from one partition to the next: ten times, each epoch, where it is affordable.

        Algorithm 1 cuts the pool every ten epochs and updates the bank in each. A filling costs a pass over the images
        set aside, and is counted as one over the pool.
        """
        if self.options.bank_feed != "epoch":
            return 1
        return min(max(self.affordable_passes() // round(1 / self.refresh_share()), 1), EPOCHS)

    def stages(self) -> list[Stage]:
        pretraining, finetuning = super().stages()
        return [pretraining, replace(finetuning, refresh=self.refresh_share() / self.feeds())]

    def refresh(self, step: Step, pool: Pool) -> None:
        """Cut the pool again, or only fill the bank where a partition is not due."""
        if step.falls_on(self.refresh_share()):
            super().refresh(step, pool)
        else:
            self.refill_bank(pool)

    def fit_score(self, labeled: Tensor, labels: Tensor, references: Tensor) -> PoolAsked | Clusters | Neighbors:
        """As T2T; the unknown kinds of the pool are what `match=prototype` prunes."""
        score = super().fit_score(labeled, labels, references)
        clusters = score.clusters if isinstance(score, PoolAsked) else score
        if isinstance(clusters, Clusters):
            self.prototypes = aliasing_prototypes(clusters, references)
        return score

    def refill_bank(self, pool: Pool) -> None:
        """Fill the bank from the images that the last partition set aside, as the present network sees them."""
        rows = self.aside_rows.cpu().nonzero().squeeze(1)
        if not len(rows):
            return
        now = pool.map(lambda images: self.net(images).softmax(dim=1).max(dim=1), rows=rows, ema=True)
        confidence, predicted = (value.new_zeros(len(self.aside_rows)).index_copy(0, rows, value) for value in now)
        self.after_partition(pool, confidence, predicted)

    def after_partition(self, pool: Pool, confidence: Tensor, predicted: Tensor) -> None:
        """Eq. 5: decide which of the images set aside are recyclable, and fill the bank with them."""
        aside = self.aside_rows.cpu()
        if self.options.recyclable == "quantile":
            limit = ranked(confidence[aside], self.options.recyclable_share, 0.0)
            self.confidence_limit = limit.to(self.cut.device)
        recyclable = aside & (confidence < self.confidence_limit.cpu())
        chosen = recyclable.nonzero().squeeze(1)
        if self.options.bank_feed == "iteration" or not len(chosen):
            return

        def push(rows: Tensor, features: Tensor) -> None:
            self.bank.push(features, predicted[rows], ids=rows)

        pool.each(self.net.encode, push, rows=chosen)  # chunk by chunk: the features of a large pool would not fit
