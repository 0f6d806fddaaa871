"""OpenMatch: a one-vs-all detector picks the pool images that FixMatch may learn from.

On the same features a classifier p and a one-vs-all head o (osp.parts.one_vs_all); h(x) is the mirrored view alone:

    L_x    = H(y, p) and L_ova = -ln o_y - ln (1 - o_k) with k the hardest other class, both means over h(x) and w(x)
    L_em   = the mean entropy of o on two weak views v₁, v₂ of images of the whole pool
    L_socr = mean_i 2 Σ_k (o_k(v₁) - o_k(v₂))²          soft open-set consistency; both views receive a gradient
    L_fm   = FixMatch on images of the pool that are selected: (1 / n) Σ_i 1[max q_i >= τ] H(argmax q_i, p(s(u_i)))
    L      = L_x + L_ova + λ_em L_em + λ_socr L_socr, and from `select_from` on + L_fm

At each refresh the averaged weights select the images whose predicted class c claims them: o_c > 1/2. An empty
selection leaves the one before (at first: all). OOD score: 1 - o_c.

Reference: Saito et al., OpenMatch: Open-Set Consistency Regularization for Semi-Supervised Learning with Outliers,
NeurIPS 2021. Differences from the release:

- all views go in one pass but w(u), which are labeled as in our FixMatch, without a graph and with the running
  statistics of batch norms; the release puts w(u) and s(u) through a second pass;
- L_fm starts and the selection is renewed at shares of the run, later and more rarely than in the release (2 % and
  0.2 % of 2¹⁹ steps), because after 2 % of a short run the detector knows nothing;
- selection on the plain view instead of a randomly mirrored one; h is the identity where mirroring changes the class;
- the first passes over the labeled images have no accidental strong view;
- τ is 0.95 as in FixMatch. The scripts of the release leave it at 0, which lets every selected image teach. In short
  runs the selection still holds many OOD images: with 0, which `--preset paper` has, digits with 60 % OOD images were
  selected less purely and classified worse.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import fixmatch_optimizer
from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.methods.fixmatch import labeling_logits, pseudo_label_loss
from osp.nets import Network
from osp.parts.matching import binary_entropy
from osp.parts.one_vs_all import one_vs_all_loss, soft_consistency
from osp.scores.one_vs_all import OneVsAllScore

RELEASE = "OpenMatch release"


class OpenMatchOptions(Options):
    ema: float | None = Field(0.999, gt=0, lt=1, description="decay of the averaged weights, for selection and testing")
    select_from: float = Field(0.2, gt=0, lt=1, description="share of the run before images are selected for FixMatch")
    refresh: float = Field(0.05, gt=0, le=1, description="share of the rest of the run between two selections")
    threshold: float = Field(0.95, ge=0, le=1, description="confidence from which a selected image gets a label")
    entropy_weight: float = Field(0.1, ge=0, description="weight of L_em")
    socr_weight: float = Field(0.5, ge=0, description="weight of L_socr, which grows with the number of classes")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of L_fm")


class OpenMatch(Method):
    name = "openmatch"
    summary = "a one-vs-all detector selects what FixMatch learns from"
    reference = "Saito et al., OpenMatch, NeurIPS 2021"
    Options = OpenMatchOptions
    labeled_views = 2
    mechanism = ("kept_share", "mask_rate")
    paper_steps = 2**19
    paper_data = ("cifar10", "cifar100")
    paper: ClassVar[dict[str, Published]] = {
        **fixmatch_optimizer(RELEASE),
        "mu": Published(2, RELEASE),
        "select_from": Published(10 / 512, "paper: from epoch 10 on; of 512 in the release"),
        "refresh": Published(1 / 502, f"{RELEASE}: every epoch"),
        "threshold": Published(0.0, f"{RELEASE}: its scripts set none"),
        "socr_weight": Published(0.5, RELEASE, {"cifar100": 1.0}),
        **Published.all("paper", entropy_weight=0.1, unlabeled_weight=1.0),
    }
    own_score: OneVsAllScore
    """Its head is o."""
    kept_rows: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.use_score(OneVsAllScore(network.feature_dim, task.num_classes))
        self.register_buffer("kept_rows", torch.zeros(0, dtype=torch.bool))

    # Declarations

    def stages(self) -> list[Stage]:
        o = self.options
        rest = self.stage(name="select", share=1 - o.select_from, refresh=o.refresh, continues=True)
        return [self.stage(name="detect", share=o.select_from), rest]

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        o = self.options
        streams = {
            "labeled": StreamSpec("labeled", o.batch, ("flip", "weak")),
            "pool": StreamSpec("unlabeled", o.batch * o.mu, ("weak", "weak2")),
        }
        if stage.name == "select":
            streams["unlabeled"] = StreamSpec("unlabeled", o.batch * o.mu, ("weak", "strong"))
        return streams

    # Losses

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o, labeled, pool = self.options, batch["labeled"], batch["pool"]
        images = [labeled["flip"], labeled["weak"], pool["weak"], pool["weak2"]]
        selects = step.stage.name == "select"
        if selects:
            weak_logits = labeling_logits(self.net, batch["unlabeled"]["weak"])
            images.append(batch["unlabeled"]["strong"])
        features = torch.split(self.net.encode(torch.cat(images)), [len(each) for each in images])
        known, targets = torch.cat(features[:2]), labeled.targets.repeat(2)
        margins = self.own_score.head(torch.cat(features[:4]))
        margins, first, second = torch.split(margins, [len(known), *map(len, features[2:4])])
        terms = {
            "ce": F.cross_entropy(self.net.classify(known), targets),
            "ova": one_vs_all_loss(margins, targets),
            "entropy": o.entropy_weight * (binary_entropy(first).mean() + binary_entropy(second).mean()) / 2,
            "socr": o.socr_weight * soft_consistency(first, second),
        }
        if selects:
            loss, mask = pseudo_label_loss(weak_logits, self.net.classify(features[4]).float(), o.threshold)
            self.log("mask_rate", mask.mean())
            terms["consistency"] = o.unlabeled_weight * loss
        return terms

    # The selection

    def refresh(self, step: Step, pool: Pool) -> None:
        """Select the images that the class predicted for them claims; none at all leaves the selection as it was."""
        (scores,) = pool.map(lambda images: self.outputs(images)[2], ema=True)
        selected = (scores < 0.5).to(self.kept_rows.device)
        if len(self.kept_rows) == 0:
            self.kept_rows = torch.ones_like(selected)
        if selected.any():
            self.kept_rows = selected
        pool.restrict("unlabeled", selected.nonzero().squeeze(1))
        self.log("kept_share", self.kept_rows.float().mean())

    def kept(self) -> Tensor | None:
        return self.kept_rows if len(self.kept_rows) else None
