"""MTC, multi-task curriculum: a domain head learns ID against OOD from soft labels that it rewrites as it goes.

Beside the classifier the network has a domain head d(x) = sigmoid(h(G(x))), 1 = ID. Each image has a soft domain label
s: 1 for labeled images for good, and for unlabeled ones 0 at first:

    L_d = mean BCE(d(w(x_i)), s_i)

What the head says of each image is recorded now and then; s_i of an unlabeled image is the mean of its last ten
records. Network and labels are thus optimized in turn: images that look like labeled ones rise, and pull others like
them along.

    warm-up   L = L_d
    then      L = L_d + L_x + weight · min(t / ramp, 1) · L_u

with MixMatch's L_x and L_u (`osp.parts.mixing`) on the labeled images and those unlabeled ones that are selected:
s_i >= Otsu's threshold of all unlabeled s. Tested with averaged weights. OOD score: 1 - d(x).

Reference: Yu et al., Multi-Task Curriculum Framework for Open-Set Semi-Supervised Learning, ECCV 2020 (which writes 1
for OOD; the release writes 1 for ID, as here). Passes: two looks at the selected images as in testing, without a graph;
then the images for L_d and the mixtures in one, so that batch norms see one population. Differences:

- A record is a look at the whole pool in eval mode at each refresh, a share of the stage. The release records after
  each epoch what was predicted in training (`record=visits`, where an image that was not visited keeps its value; in
  the release it counts as OOD). In a short run that says more about when an image was visited than what it is.
- L_d takes batch labeled and batch · mu unlabeled images: with mu 5 a sixth of them is labeled. Drawn together, as
  published (`draw=joint`, batch images in all), from 60 labeled and 30,000 unlabeled images of MNIST, a labeled one
  is among every 500.
- The release keeps the images for L_d out of the running statistics of batch norms; see the passes above.
- λ is drawn for each sample, guesses are made without dropout. The weight of L_u is 10 instead of 75 and rises over the
  whole stage, because a larger one makes guesses agree on one class early (mixmatch.py, whose weight of 3 belongs to
  its mu of 1 and to an unsorted pool). mu is the common 5 instead of 1.

As in the release, weight decay and averaged weights begin after the warm-up.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.distributed import gathered
from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.nets import Network
from osp.parts.mixing import guess_labels, mixmatch_losses, mixtures
from osp.parts.partition import otsu_threshold
from osp.scores.domain import DomainScore

RELEASE = "MTC release"

RECORDS = 10
"""Predictions of which a soft label is the mean."""


class MTCOptions(Options):
    domain_share: float = Field(0.1, gt=0, lt=1, description="share of the run for the warm-up with L_d alone")
    domain_refresh: float = Field(0.05, gt=0, le=1, description="share of the warm-up between two records")
    refresh: float = Field(0.05, gt=0, le=1, description="share of the rest between two records and selections")
    draw: Literal["apart", "joint"] = Field(
        "apart", description="images for L_d: batch labeled and batch · mu others, or batch from both together"
    )
    record: Literal["pool", "visits"] = Field(
        "pool", description="what is recorded: a look at the whole pool, or each image's last prediction in training"
    )
    temperature: float = Field(0.5, gt=0, description="sharpening of the guessed labels")
    mixing: float = Field(0.75, gt=0, description="a of the Beta(a, a) distribution of the mixing weights")
    unlabeled_weight: float = Field(10.0, ge=0, description="largest weight of L_u")
    ramp: float = Field(1.0, ge=0, le=1, description="share of the stage after warm-up over which that weight rises")


class MTC(Method):
    name = "mtc"
    summary = "a domain head with labels of its own making selects the images for MixMatch"
    reference = "Yu et al., Multi-Task Curriculum Framework for Open-Set Semi-Supervised Learning, ECCV 2020"
    Options = MTCOptions
    mechanism = ("kept_share", "soft_spread")
    paper_steps = 2**20 + 86_000  # and 100 passes of CIFAR-10's 55,000 images in batches of 64
    paper_data = ("cifar10",)
    paper = {  # noqa: RUF012
        **Published.all(RELEASE, batch=64, mu=1, lr=2e-3, schedule="constant", decay_all=True, ema=0.999),
        "optimizer": Published("adamw", f"{RELEASE}: Adam with decoupled weight decay"),
        "weight_decay": Published(0.02, f"{RELEASE}: parameters times 1 - 0.02 lr a step"),
        "domain_share": Published(0.076, f"{RELEASE}: 100 passes of 55,000 images, then 2^20 steps"),
        "domain_refresh": Published(0.01, f"{RELEASE}: each of 100 passes"),
        "refresh": Published(2**-10, f"{RELEASE}: each of 1,024 epochs"),
        "record": Published("visits", f"{RELEASE}; unvisited images keep their value"),
        **Published.all(RELEASE, draw="joint", temperature=0.5, mixing=0.75, unlabeled_weight=75.0),
        "ramp": Published(16 / 1024, f"{RELEASE}: 16 of 1,024 epochs"),
    }
    own_score: DomainScore
    """Its head is h."""
    latest: Tensor
    records: Tensor
    recorded: Tensor
    soft: Tensor
    selected: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.use_score(DomainScore(network.feature_dim, task.num_classes))
        unlabeled = torch.arange(task.num_labeled + task.num_unlabeled) >= task.num_labeled
        self.register_buffer("latest", torch.zeros(len(unlabeled)))  # predictions of labeled, then unlabeled images
        self.register_buffer("records", torch.zeros(RECORDS, task.num_unlabeled))
        self.register_buffer("recorded", torch.zeros((), dtype=torch.int64))
        self.register_buffer("soft", (~unlabeled).float())  # s, of labeled, then unlabeled images
        self.register_buffer("selected", torch.zeros(0, dtype=torch.bool))  # unlabeled rows, once they were selected
        self.predicted: tuple[Tensor, Tensor] | None = None  # rows and answers, by `losses` for `after_step`

    # Declarations

    def stages(self) -> list[Stage]:
        o = self.options
        warming = self.stage(name="domain", share=o.domain_share, refresh=o.domain_refresh, weight_decay=0.0)
        return [warming, self.stage(name="train", share=1 - o.domain_share, refresh=o.refresh)]

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        batch, pool = self.options.batch, self.options.batch * self.options.mu
        if self.options.draw == "joint":
            streams = {"joint": StreamSpec("joint", batch, ("weak",))}
        else:
            streams = {"pool": StreamSpec("unlabeled", pool, ("weak",))}
        if self.options.draw == "apart" or stage.name == "train":
            streams["labeled"] = StreamSpec("labeled", batch, ("weak",))
        if stage.name == "train":
            streams["unlabeled"] = StreamSpec("unlabeled", pool, ("weak", "weak2"))
        return streams

    # Losses

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        images, rows = self.for_domain(batch)
        if step.stage.name == "domain":
            return {"domain": self.domain_loss(self.net.encode(images), rows)}
        mixed, targets = self.mixtures(batch, step)
        features = self.net.encode(torch.cat([images, mixed]))
        logits = self.net.classify(features[len(images) :])
        cross_entropy, squares = mixmatch_losses(logits, targets, len(batch["labeled"].rows))
        return {
            "domain": self.domain_loss(features[: len(images)], rows),
            "ce": cross_entropy,
            "guess": self.options.unlabeled_weight * step.linear_ramp(self.options.ramp) * squares,
        }

    def for_domain(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The images for L_d, and their rows among the labeled ones followed by the unlabeled ones."""
        if self.options.draw == "joint":
            return batch["joint"]["weak"], batch["joint"].rows
        labeled, pool = batch["labeled"], batch["pool"]
        rows = torch.cat([labeled.rows, self.task.num_labeled + pool.rows])
        return torch.cat([labeled["weak"], pool["weak"]]), rows

    def domain_loss(self, features: Tensor, rows: Tensor) -> Tensor:
        """L_d."""
        logits = self.own_score.head(features).float()[:, 0]
        self.predicted = rows, logits.detach().sigmoid()
        return F.binary_cross_entropy_with_logits(logits, self.soft[rows])

    def mixtures(self, batch: Batch, step: Step) -> tuple[Tensor, Tensor]:
        """MixMatch's mixed images and targets, first of the labeled images and then of two views of the selected."""
        o, labeled, unlabeled = self.options, batch["labeled"], batch["unlabeled"]
        looks = torch.cat([unlabeled["weak"], unlabeled["weak2"]])
        logits = self.net.classifier(self.net.encode_as_tested(looks))
        guessed = guess_labels(logits.chunk(2), o.temperature)
        return mixtures(labeled["weak"], labeled.targets, looks, guessed, o.mixing, step.generator)[:2]

    # Soft labels and the selection

    def begin_stage(self, step: Step, pool: Pool) -> None:
        """The averaged weights forget the warm-up, in which there was no class to learn."""
        if step.stage.name == "train":
            pool.restart_average()

    def after_step(self, batch: Batch, step: Step) -> None:
        """Note what was predicted; images that were not in the batch keep what they had."""
        assert self.predicted is not None
        rows, answers = self.predicted
        self.latest.index_copy_(0, gathered(rows), gathered(answers))
        self.predicted = None

    def refresh(self, step: Step, pool: Pool) -> None:
        """Record predictions, make soft labels of the last ten records, and select by them."""
        if step.index > 0:
            if self.options.record == "pool":
                (scores,) = pool.map(lambda images: self.outputs(images)[2])
                self.latest[self.task.num_labeled :] = 1 - scores.to(self.latest.device)
            self.record()
        if step.stage.name == "train":
            self.select(pool)

    def record(self) -> None:
        """The oldest of ten records gives way to the latest predictions; with ten there, labels are their means."""
        unlabeled = slice(self.task.num_labeled, None)
        self.records[self.recorded % RECORDS] = self.latest[unlabeled]
        self.recorded += 1
        if self.recorded >= RECORDS:
            self.soft[unlabeled] = self.records.mean(dim=0)
        self.log("soft_spread", self.soft[unlabeled].std(unbiased=False))

    def select(self, pool: Pool) -> None:
        """MixMatch draws from the unlabeled images whose soft label reaches Otsu's threshold of all of them."""
        soft = self.soft[self.task.num_labeled :]
        self.selected = soft >= otsu_threshold(soft)
        pool.restrict("unlabeled", self.selected.nonzero().squeeze(1))
        self.log("kept_share", self.selected.float().mean())

    def kept(self) -> Tensor | None:
        return self.selected if len(self.selected) else None
