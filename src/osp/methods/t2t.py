"""T2T, Trash to Treasure: a matching head finds the OOD images; they help to learn rotations but not classes.

Two stages on one network (encoder G, classifier F) with a rotation head H and a matching head M:

    pre-training  L = L_ce + L_ood^l + L_rot                                  (Eq. 13 of the OSP paper)
    fine-tuning   L = L_ce + L_ood^l + L_rot + a(t) (L_u + L_ood^u)           (Eq. 14), a(t) a linear ramp

At each refresh the pool is cut in two by an OOD score; only the images kept enter L_u, while L_rot and L_ood^u see all.
The terms are in `osp.parts`. OOD score of the trained model: 1 - S with S(x) = sigmoid(M(G(x), ŷ)).

Reference: Huang et al., Trash to Treasure, ICCV 2021; its release is the authority for what the OSP paper leaves out.
There the score that cuts the pool is 1 - S, the threshold Otsu's, and L_ood^u the entropy of S. Trained on few labels,
that partition can feed on itself (docs/osp.md). Our defaults differ, each by an option that `--preset paper` turns off:
`partition_by` (a score that asks the pool), `cut_by` (the estimated share of ID images), `unlabeled_matching`
(the partition is the target of M), `doubtful` and `score_memory`; `least_share`, `joint_weak` and `rotation_pass`.

Rotation is one use of the stream `pool`, whose images also feed L_ood^u: with `rotation_weight=0`, or where the task
has no pixels, nothing is rotated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from osp.errors import UserError
from osp.methods._published import t2t_optimizer
from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.nets import Network
from osp.parts.clusters import Clusters, fit_clusters
from osp.parts.consistency import noise_consistency, noisy, sharpened_consistency
from osp.parts.matching import MatchingHead, labeled_matching_loss, unlabeled_matching_entropy
from osp.parts.neighbors import Neighbors, fit_neighbors
from osp.parts.partition import id_share, otsu_threshold, ranked
from osp.parts.pool_score import PoolAsked, ask_pool
from osp.parts.reduce import batch_std, masked_mean
from osp.parts.rotation import rotate4, rotation_loss
from osp.scores.matching import MatchingScore

RELEASE = "T2T release"
OURS = "off: not in the publication"
NONE = torch.empty(0)


class T2TOptions(Options):
    pretrain_share: float = Field(0.2, gt=0, lt=1, description="share of the run for pre-training")
    pretrain_lr: float = Field(0.03, gt=0, description="learning rate of pre-training")
    pretrain_schedule: Literal["cosine-7/16", "cosine", "steps", "constant"] = Field(
        "cosine-7/16", description="learning rate over pre-training"
    )
    pretrain_drops: tuple[float, ...] = Field((), description="shares of pre-training where `steps` lowers the rate")
    one_schedule: bool = Field(
        False,
        description="both stages share one optimizer and one schedule, that of `lr`, `schedule` and `drops`; "
        "`pretrain_lr` and its like are not used",
        json_schema_extra={"before": False},
    )
    pool_batch: int = Field(
        64, ge=2, le=10**9, description="images of the whole pool per step, for L_rot (each at four angles) and L_ood^u"
    )
    rotation_weight: float = Field(1.0, ge=0, description="weight of L_rot; with 0 no image is rotated")
    rotation_until: Literal["pretrain", "finetune"] = Field(
        "finetune",
        description="the last stage with L_rot: the first, or both as in T2T and OSP",
        json_schema_extra={"before": "finetune"},
    )
    rotation_pass: Literal["joint", "own"] = Field(
        "joint", description="rotated images in one pass through the encoder with the others, or in one of their own"
    )
    temperature: float = Field(0.4, gt=0, description="sharpening of the targets of L_u")
    threshold: float = Field(0.8, ge=0, le=1, description="confidence from which an image enters L_u")
    least_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the batch that confident images count as, at least, in the means L_u and L_odc",
    )
    ramp: float = Field(0.2, ge=0, le=1, description="share of fine-tuning over which the unlabeled terms rise")
    refresh: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of fine-tuning between two partitions of the pool; default: 0.1, or more for a large pool",
    )
    refresh_cost: float = Field(
        1 / 12,
        gt=0,
        description="what passes over the pool may cost where `refresh` is not given, as a share of the steps' cost",
        json_schema_extra={"before": 1 / 25},
    )
    joint_weak: bool = Field(
        False, description="weak views in one pass with the others: joint batch statistics, and a graph nobody needs"
    )
    consistency_from: Literal["kept", "all"] = Field("kept", description="unlabeled images that enter L_u")
    partition_by: Literal["pool", "clusters", "neighbors", "matching"] = Field(
        "pool",
        description="what cuts the pool: `clusters` of it, labeled `neighbors` in it, both (`pool`), or `matching`, "
        "1 - S as in T2T and OSP",
    )
    references: int = Field(4000, ge=10, description="pool images that clusters and neighbors are found in")
    unlabeled_matching: Literal["partition", "entropy", "off"] = Field(
        "partition", description="L_ood^u: the partition as target, or the entropy of T2T"
    )
    cut_by: Literal["share", "otsu"] = Field(
        "share",
        description="where the pool is cut: at the share of ID images estimated from validation images, or Otsu's "
        "(also where there are none)",
    )
    id_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of ID images in the pool, where you know it: the pool is cut there, whatever `cut_by`",
        json_schema_extra={"before": None},
    )
    doubtful: float = Field(
        0.2, ge=0, lt=1, description="share of each side, next to the threshold, neither kept nor set aside"
    )
    score_memory: float = Field(0.5, ge=0, lt=1, description="weight of earlier scores when the pool is cut again")
    noise: float = Field(0.0, ge=0, description="feature noise in pre-training, in standard deviations")


@dataclass(frozen=True)
class Encoded:
    """What the encoder made of a step: features by view."""

    labeled: Tensor
    pool: Tensor
    """Of the stream from the whole pool, OOD images included."""
    turned: Tensor
    """The same images at four angles, the unrotated ones first; only those where there is no rotation task."""
    strong: Tensor = NONE
    weak: Tensor = NONE
    """Like the strong views, in fine-tuning only."""
    weak_logits: Tensor = NONE
    """Without a graph."""


class T2T(Method):
    name = "t2t"
    summary = "OOD images of the pool are set aside; they still serve a rotation task"
    reference = "Huang et al., Trash to Treasure, ICCV 2021"
    Options: ClassVar[type[Options]] = T2TOptions
    validation = "share of ID images in the pool (without labels); without any: Otsu's threshold"
    mechanism: ClassVar[tuple[str, ...]] = ("kept_share", "consistency_rate")
    earlier: ClassVar[dict[str, Any]] = {"partition_by": "neighbors", "refresh_cost": 1 / 25, "score_memory": 0.8}
    paper = {  # noqa: RUF012
        **t2t_optimizer(RELEASE),
        **Published.all(RELEASE, one_schedule=False, drop_factor=0.2, ema=None),
        "pretrain_share": Published(0.2, "T2T release: 50,000 of 250,000"),
        **Published.all(RELEASE, pretrain_lr=0.1, pretrain_schedule="steps", pretrain_drops=(0.3, 0.6, 0.8)),
        **Published.all(RELEASE, pool_batch=64, rotation_weight=1.0, rotation_pass="own", rotation_until="finetune"),
        **Published.all(RELEASE, temperature=0.4, threshold=0.8, least_share=0.0, ramp=0.2, consistency_from="kept"),
        **Published.all(RELEASE, refresh=0.1, joint_weak=True, unlabeled_matching="entropy"),
        **Published.all(RELEASE, partition_by="matching", cut_by="otsu"),
        **Published.all(OURS, id_share=None, doubtful=0.0, score_memory=0.0, noise=0.0),
    }
    own_score: MatchingScore
    weak_graph = False
    scores: Tensor
    share: Tensor
    kept_rows: Tensor
    aside_rows: Tensor
    cut: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        rotates = options.rotation_weight > 0 and len(task.shape) == 3  # stored features cannot be turned
        if rotates and task.shape[1] != task.shape[2]:
            raise UserError(
                f"Images are {task.shape[2]}x{task.shape[1]}; the rotation task of {self.name} needs square ones. "
                "Set image_size, or rotation_weight to 0."
            )
        self.rotation_head = nn.Linear(network.feature_dim, 4) if rotates else None
        self.use_score(MatchingScore(network.feature_dim, task.num_classes))
        self.register_buffer("scores", torch.zeros(0))  # of the pool at the last refresh; larger = more OOD
        known = options.id_share or (task.id_share if options.cut_by == "share" else 0.0)
        self.register_buffer("share", torch.tensor(known))  # of ID images in the pool; 0 while nobody knows it
        self.register_buffer("kept_rows", torch.zeros(0, dtype=torch.bool))
        self.register_buffer("aside_rows", torch.zeros(0, dtype=torch.bool))
        self.register_buffer("cut", torch.zeros(2))  # kept up to the first score, set aside from the second

    @property
    def matching(self) -> MatchingHead:
        """M."""
        return self.own_score.head

    # Declarations

    def stages(self) -> list[Stage]:
        o = self.options
        own = {"lr": o.pretrain_lr, "schedule": o.pretrain_schedule, "drops": o.pretrain_drops}
        pretraining = self.stage(name="pretrain", share=o.pretrain_share, **({} if o.one_schedule else own))
        finetuning = self.stage(
            name="finetune",
            share=1 - o.pretrain_share,
            refresh=self.refresh_share(),
            continues=o.one_schedule,
        )
        return [pretraining, finetuning]

    def refresh_share(self) -> float:
        """The share of fine-tuning between two partitions: 1/n for n passes over the pool, ten where they are cheap.

        The images that passes encode are at most `refresh_cost` of those that the steps encode, one that needs a
        gradient counting as three; but there is one pass at least.
        """
        o = self.options
        if o.refresh is not None:
            return float(o.refresh)
        return 1 / min(max(self.affordable_passes(), 1), 10)

    def affordable_passes(self) -> int:
        """How many passes over the pool fine-tuning may make."""
        o = self.options
        angles = 1 if self.rotation_head is None or o.rotation_until == "pretrain" else 4
        step = 3 * (o.batch * (1 + o.mu) + angles * o.pool_batch) + o.batch * o.mu
        finetuning = self.task.steps * (1 - o.pretrain_share)
        return int(o.refresh_cost * step * finetuning / max(self.task.num_unlabeled, 1))

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        o = self.options
        streams = {
            "labeled": StreamSpec("labeled", o.batch, ("weak",)),
            "pool": StreamSpec("unlabeled", o.pool_batch, ("weak",)),
        }
        if stage.name == "finetune":
            streams["unlabeled"] = StreamSpec("unlabeled", o.batch * o.mu, ("weak", "strong"))
        return streams

    # Losses

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        return self.pretraining(batch, step) if step.stage.name == "pretrain" else self.finetuning(batch, step)

    def pretraining(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Eq. 13, L_pre: classes and matching from labeled images, rotations from all unlabeled ones."""
        encoded = self.encode(batch)
        terms = self.labeled_terms(encoded.labeled, batch["labeled"].targets, step)
        if self.options.noise:
            both = torch.cat([encoded.labeled, encoded.pool])
            changed = noisy(both, self.options.noise * batch_std(both), step.generator("noise"))
            terms["noise"] = noise_consistency(self.net.classifier(both), self.net.classifier(changed))
        return terms | self.rotation_term(encoded)

    def finetuning(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Eq. 14, L_t2t."""
        return self.t2t_terms(self.encode(batch), batch, step)

    def encode(self, batch: Batch) -> Encoded:
        """Every image of a step through the encoder, once, and all that learn in one pass.

        One pass, so that batch norms see one mixture of views: it is what the labeled images are classified under, and
        what the running statistics of the tested network become. (The release gives the rotated images a pass of their
        own: `rotation_pass`.) The weak views, which are only looked at, go by those (see `Network.encode_as_tested`),
        or with a graph and in the same pass if they are asked to or are pruned.
        """
        labeled, unlabeled, pool = batch["labeled"]["weak"], batch.get("unlabeled"), batch["pool"]["weak"]
        apart, joint_weak = self.options.rotation_pass == "own", self.options.joint_weak or self.weak_graph
        rotates = self.rotation_head is not None and (unlabeled is None or self.options.rotation_until == "finetune")
        turned = rotate4(pool) if rotates else pool
        views = [labeled] if apart else [labeled, turned]
        if unlabeled is not None:
            views += [unlabeled["strong"], unlabeled["weak"]] if joint_weak else [unlabeled["strong"]]
        known, *others = torch.split(self.net.encode(torch.cat(views)), [len(view) for view in views])
        turned = self.net.encode(turned) if apart else others.pop(0)
        if unlabeled is None:
            return Encoded(known, turned[: len(pool)], turned)
        weak = others[1] if joint_weak else self.net.encode_as_tested(unlabeled["weak"])
        weak = weak if self.weak_graph else weak.detach()
        return Encoded(known, turned[: len(pool)], turned, others[0], weak, self.net.classifier(weak).detach())

    def t2t_terms(self, encoded: Encoded, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Eq. 14, L_t2t, from encoded images: the unlabeled terms grow with the ramp."""
        o = self.options
        terms = self.labeled_terms(encoded.labeled, batch["labeled"].targets, step)
        strong_logits = self.net.classify(encoded.strong)
        consistency, mask = sharpened_consistency(
            encoded.weak_logits, strong_logits, o.temperature, o.threshold, o.least_share
        )
        self.log("consistency_rate", mask.float().mean())
        ramp = step.linear_ramp(o.ramp)
        terms["consistency"] = ramp * consistency
        if o.unlabeled_matching != "off":
            terms["matching_u"] = ramp * self.unlabeled_matching(encoded.pool, batch["pool"].rows, step)
        return terms | self.rotation_term(encoded)

    def labeled_terms(self, features: Tensor, targets: Tensor, step: Step) -> dict[str, Tensor]:
        """Eq. 11, L_ce, and L_ood^l."""
        logits = self.net.classify(features)
        matching = labeled_matching_loss(self.matching, features, logits, targets, step.generator("negatives"))
        return {"ce": F.cross_entropy(logits, targets), "matching": matching}

    def rotation_term(self, encoded: Encoded) -> dict[str, Tensor]:
        """Eq. 12, L_rot, where images are rotated."""
        if self.rotation_head is None or len(encoded.turned) == len(encoded.pool):
            return {}
        return {"rotation": self.options.rotation_weight * rotation_loss(self.rotation_head(encoded.turned))}

    def unlabeled_matching(self, features: Tensor, rows: Tensor, step: Step) -> Tensor:
        """L_ood^u on images of the whole pool."""
        logits = self.net.classifier(features)
        if self.options.unlabeled_matching == "entropy":
            return unlabeled_matching_entropy(self.matching, features, logits, step.generator("pairs"))
        pair_logits = self.matching(features, logits.detach().argmax(dim=1))
        wanted = self.kept_rows[rows].to(pair_logits.dtype)
        sure = self.kept_rows[rows] | self.aside_rows[rows]
        return masked_mean(F.binary_cross_entropy_with_logits(pair_logits, wanted, reduction="none"), sure)

    # The partition

    def refresh(self, step: Step, pool: Pool) -> None:
        """Score the pool by the averaged weights, where there are any, and cut it in two."""
        by_pool = None if self.options.partition_by == "matching" else self.pool_score(step, pool)

        def look(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            features, logits, scores = self.outputs(images)
            if by_pool is not None:
                scores = by_pool.score(features)
            confidence, predicted = logits.softmax(dim=1).max(dim=1)
            return scores, confidence, predicted

        scores, confidence, predicted = pool.map(look, ema=True)
        if self.options.cut_by == "share" and self.task.num_val and not self.share:
            known = pool.map(look, part="val", ema=True)[0]
            self.share = torch.tensor(id_share(scores, known), device=self.cut.device)
        self.partition(scores.to(self.cut.device))
        if self.options.consistency_from == "kept":
            pool.restrict("unlabeled", self.kept_rows.nonzero().squeeze(1))
        self.after_partition(pool, confidence, predicted)

    def after_partition(self, pool: Pool, confidence: Tensor, predicted: Tensor) -> None:
        """For methods built on this one, which use the images set aside."""

    def pool_score(self, step: Step, pool: Pool) -> PoolAsked | Clusters | Neighbors:
        """The score that asks the pool, from the labeled images and a random sample of the others."""
        sample = torch.randperm(self.task.num_unlabeled, generator=step.generator("references"))
        rows = sample[: self.options.references].sort().values
        (labeled,) = pool.map(self.net.encode, part="labeled", ema=True)
        (references,) = pool.map(self.net.encode, rows=rows, ema=True)
        features = labeled.to(self.cut.device), pool.labels("labeled"), references.to(self.cut.device)
        return self.fit_score(*features)

    def fit_score(self, labeled: Tensor, labels: Tensor, references: Tensor) -> PoolAsked | Clusters | Neighbors:
        """From features of labeled images and of a sample of the pool."""
        if self.options.partition_by == "neighbors":
            return fit_neighbors(labeled, references)
        fit = ask_pool if self.options.partition_by == "pool" else fit_clusters
        return fit(labeled, labels, references, self.task.num_classes)

    def partition(self, scores: Tensor) -> None:
        """Eq. 1, g(x): cut the pool by its scores, averaged with those of earlier refreshes.

        The cut is where the share of ID images ends that is known or was estimated at the first refresh, before any
        partition had shaped the features; without validation images to estimate it from, or if asked to, it is Otsu's
        threshold. The share `doubtful` of each side that lies next to the cut belongs to neither.
        """
        o = self.options
        if len(self.scores) == len(scores):
            scores = o.score_memory * self.scores + (1 - o.score_memory) * scores
        self.scores = scores
        if self.share:
            threshold = float(scores.sort().values[max(math.ceil(float(self.share) * len(scores)) - 1, 0)])
        else:
            threshold = otsu_threshold(scores)
        below = scores <= threshold
        sure_kept = ranked(scores[below], 1 - o.doubtful, threshold)
        sure_aside = ranked(scores[~below], o.doubtful, threshold)
        self.cut = torch.stack([sure_kept, sure_aside])
        self.kept_rows, self.aside_rows = scores <= sure_kept, ~below & (scores >= sure_aside)
        self.log("kept_share", self.kept_rows.float().mean())
        self.log("id_share", below.float().mean())

    def kept(self) -> Tensor | None:
        return self.kept_rows if len(self.kept_rows) else None
