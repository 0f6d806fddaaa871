"""Safe-Student: a frozen teacher sorts each batch into seen and unseen classes; the student learns from both.

    teacher's training  L = H(y, p(s(x)))
    rounds              L = H(y, p(s(x))) + λ₁ L_cbe + λ₂ L_ucd

With the teacher's logits f of the plain view of an unlabeled image u, q = softmax(f), ŷ = argmax q and o = p(s(u)):

    ED(u)  = T ln Σ_c exp(f_c / T) - T ln Σ_{c ≠ ŷ} exp(f_c / T), T = 10     energy discrepancy; large = a seen class
    seen   = ED above the τ₁-quantile of the batch,  unseen = ED below its τ₂-quantile
    L_cbe  = (1 / |seen|) Σ_seen H(ŷ, o) + (1 / n) Σ_seen KL(q ‖ o)          confirmation-bias elimination
    L_ucd  = (1 / n) Σ_unseen KL(uniform ‖ o)                                unseen-class distribution learning

The teacher is a frozen copy of the network in eval mode, not an average. After each round the student replaces it; the
student itself goes on from where it is with a new optimizer. OOD score: -ED of the student, not of the teacher.

Both quantiles are shares of every batch: 1 - τ₁ of it counts as seen and τ₂ as unseen whatever the pool holds, so that
τ₁ (`seen_above`) should be near the share of OOD images, if that is known. For τ₂ (`unseen_below`) the release has 0.5
in the command of its README, for a pool of 60 % OOD images, and 0.1 in its parser. Ours is 0.5: on digits with 30 or
60 % OOD images it was a little more accurate and detected better; with none, 0.1 was.

Reference: He et al., Safe-Student for Safe Deep Semi-Supervised Learning with Unseen-Class Unlabeled Data, CVPR 2022.
Differences from the release:

- its masks are broadcast to a matrix, which makes the KL and the uniform term means over all images times the mask's
  mean; ours belong to the images;
- it switches to the student of the best validation so far, and ends with it (`choice=best`, in the paper preset); ours
  to that of the round's end, if its validation accuracy is not below the teacher's (without validation images: always),
  and ends with the last, which is the rule for all methods here;
- labeled and unlabeled images go through the student in one pass (batch norms see both), in two there;
- strong views are FixMatch's RandAugment instead of AutoAugment.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from osp.distributed import gathered
from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.nets import Network
from osp.parts.consistency import kl_divergence
from osp.parts.reduce import masked_mean
from osp.parts.weights import WeightStore
from osp.scores.energy_discrepancy import EnergyDiscrepancyScore, energy_discrepancy

RELEASE = "Safe-Student release"


class SafeStudentOptions(Options):
    teacher_share: float = Field(0.45, gt=0, lt=1, description="share of the run in which the teacher is trained")
    rounds: int = Field(3, ge=1, description="rounds of equal length; the student becomes the teacher after each")
    seen_above: float = Field(
        0.6, ge=0, le=1, description="τ₁: quantile of a batch's energy discrepancy above which images are seen classes"
    )
    unseen_below: float = Field(0.5, ge=0, le=1, description="τ₂: quantile below which images are unseen classes")
    seen_weight: float = Field(0.3, ge=0, description="λ₁: weight of L_cbe")
    unseen_weight: float = Field(0.05, ge=0, description="λ₂: weight of L_ucd")
    temperature: float = Field(10.0, gt=0, description="T of the energy discrepancy")
    teacher_drop_factor: float | None = Field(
        None, gt=0, description="`drop_factor` of the teacher's training, where it is another"
    )
    choice: Literal["end", "best"] = Field(
        "end", description="student that teaches the next round and ends the run: the last, or the best on validation"
    )
    validate_every: float = Field(0.1, gt=0, le=1, description="share of a round between two looks for the best")

    @field_validator("unseen_below")
    @classmethod
    def _not_both(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("seen_above", 1.0):
            raise ValueError("it should be at most seen_above, or images would be both")
        return value


def seen_and_unseen(discrepancy: Tensor, seen_above: float, unseen_below: float) -> tuple[Tensor, Tensor]:
    """Masks of a batch: above its one quantile, below its other. The quantiles are those of the global batch."""
    everyone = gathered(discrepancy)
    return discrepancy > everyone.quantile(seen_above), discrepancy < everyone.quantile(unseen_below)


def confirmation_loss(teacher_logits: Tensor, logits: Tensor, seen: Tensor) -> Tensor:
    """L_cbe: the teacher's labels as a mean over the seen images, its distributions as one over the whole batch."""
    hard = F.cross_entropy(logits, teacher_logits.argmax(dim=1), reduction="none")
    return masked_mean(hard, seen) + masked_mean(kl_divergence(teacher_logits, logits), seen, least=1.0)


def uniform_loss(logits: Tensor, unseen: Tensor) -> Tensor:
    """L_ucd: the mean over the batch of 1[unseen] KL(uniform ‖ softmax(logits))."""
    return masked_mean(kl_divergence(torch.zeros_like(logits), logits), unseen, least=1.0)


class SafeStudent(Method):
    name = "safe-student"
    summary = "a frozen teacher tells which images to trust and which to be unsure of"
    reference = "He et al., Safe-Student, CVPR 2022"
    Options = SafeStudentOptions
    mechanism = ("seen_rate", "unseen_rate")
    validation = "whether a student becomes the teacher, with labels (none: always)"
    paper_steps = 22_000
    paper_data = ("cifar10",)
    paper: ClassVar[dict[str, Published]] = {
        **Published.all(RELEASE, batch=256, mu=1, optimizer="sgd", lr=0.128, momentum=0.9, nesterov=True),
        **Published.all(RELEASE, weight_decay=5e-4, schedule="steps"),
        "decay_all": Published(True, f"{RELEASE}: no exception is known"),
        "drops": Published(tuple(k / 20 for k in range(1, 20)), f"{RELEASE}: every 5 epochs, here 20 times a stage"),
        "drop_factor": Published(0.97**4, f"{RELEASE}: 0.97 every 5 of a round's 400 epochs"),
        "teacher_drop_factor": Published(0.97**10, f"{RELEASE}: 0.97 every 5 of the teacher's 1,000 epochs"),
        "teacher_share": Published(10 / 22, f"{RELEASE}: 1,000 epochs and 3 x 400, at 2,400 labels"),
        "seen_above": Published(0.6, f"{RELEASE}, for a pool of 60 % OOD images"),
        "unseen_below": Published(0.5, f"{RELEASE}: its README for 60 % OOD images (its parser: 0.1)"),
        **Published.all(RELEASE, rounds=3, seen_weight=0.3, unseen_weight=0.05, temperature=10.0, choice="best"),
        "validate_every": Published(0.025, f"{RELEASE}: every 10 of a round's 400 epochs"),
    }
    best_accuracy: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.use_score(EnergyDiscrepancyScore(network.feature_dim, task.num_classes, options.temperature))
        # Without dropout: the teacher never trains.
        self.teacher = Network(copy.deepcopy(network.encoder), network.feature_dim, task.num_classes)
        self.teacher.requires_grad_(False)
        self.take_over()
        self.best = WeightStore(network) if options.choice == "best" and task.num_val else None
        self.register_buffer("best_accuracy", torch.tensor(-1.0))
        self.train(self.training)

    def train(self, mode: bool = True) -> SafeStudent:
        super().train(mode)
        self.teacher.eval()
        return self

    # Declarations

    def stages(self) -> list[Stage]:
        o = self.options
        first = self.stage(name="teacher", share=o.teacher_share, drop_factor=o.teacher_drop_factor or o.drop_factor)
        share, refresh = (1 - o.teacher_share) / o.rounds, o.validate_every if self.best is not None else None
        names = [f"round {number + 1}" for number in range(o.rounds)]
        return [first, *(self.stage(name=name, share=share, refresh=refresh) for name in names)]

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        streams = {"labeled": StreamSpec("labeled", self.options.batch, ("strong",))}
        if stage.name != "teacher":
            streams["unlabeled"] = StreamSpec("unlabeled", self.options.batch * self.options.mu, ("plain", "strong"))
        return streams

    # Losses

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled = batch["labeled"]
        if step.stage.name == "teacher":
            return {"ce": F.cross_entropy(self.net(labeled["strong"]), labeled.targets)}
        o, unlabeled = self.options, batch["unlabeled"]
        with torch.no_grad():
            teacher_logits = self.teacher(unlabeled["plain"]).float()
            discrepancy = energy_discrepancy(teacher_logits, o.temperature)
            seen, unseen = seen_and_unseen(discrepancy, o.seen_above, o.unseen_below)
        logits = self.net(torch.cat([labeled["strong"], unlabeled["strong"]])).float()
        labeled_logits, strong_logits = logits[: len(labeled.rows)], logits[len(labeled.rows) :]
        self.log("seen_rate", seen.float().mean())
        self.log("unseen_rate", unseen.float().mean())
        self.log("discrepancy", discrepancy.mean())
        return {
            "ce": F.cross_entropy(labeled_logits, labeled.targets),
            "seen": o.seen_weight * confirmation_loss(teacher_logits, strong_logits, seen),
            "unseen": o.unseen_weight * uniform_loss(strong_logits, unseen),
        }

    # The teacher

    def begin_stage(self, step: Step, pool: Pool) -> None:
        """Before each round: what was trained becomes the teacher, unless the old one is better on validation."""
        if step.stage.name == "teacher":
            return
        if step.stage_index > 1 and self.best is not None:
            self.best.restore(self.teacher)
            return
        switches = step.stage_index == 1 or self.no_worse(pool)
        if switches:
            self.take_over()
        self.log("teacher_replaced", float(switches))

    def refresh(self, step: Step, pool: Pool) -> None:
        """With `choice=best`: a look for the best student, now and then within a round."""
        if self.best is not None and step.stage_step > 0:
            self.consider(self.best, pool)

    def consider(self, best: WeightStore, pool: Pool) -> None:
        """Keep the student if none before it did better on validation images."""
        (answers,) = pool.map(lambda images: self.net(images).argmax(1), part="val")
        accuracy = (answers == pool.labels("val").cpu()).float().mean()
        if accuracy >= self.best_accuracy:
            best.keep(self.net)
            self.best_accuracy.copy_(accuracy)

    def end_stage(self, step: Step, pool: Pool) -> None:
        """With `choice=best`: the last look of a round; the run ends with the best student of all rounds."""
        if self.best is None or step.stage.name == "teacher":
            return
        self.consider(self.best, pool)
        if step.stage_index == self.options.rounds:
            self.best.restore(self.net)
            pool.restart_average()

    def no_worse(self, pool: Pool) -> bool:
        """Whether the student's validation accuracy is at least the teacher's."""
        if not self.task.num_val:
            return True
        own, old = pool.map(lambda images: (self.net(images).argmax(1), self.teacher(images).argmax(1)), part="val")
        truth = pool.labels("val").cpu()
        return bool((own == truth).sum() >= (old == truth).sum())

    def take_over(self) -> None:
        """The network as it is, batch-norm statistics included, becomes the teacher."""
        self.teacher.encoder.load_state_dict(self.net.encoder.state_dict())
        self.teacher.classifier.load_state_dict(self.net.classifier.state_dict())
