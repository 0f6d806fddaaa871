"""UASD, uncertainty-aware self-distillation: the mean of an image's past predictions is its soft label, and its gate.

Every visit of a training image adds the network's prediction to its row of an accumulator A. The mean of them changes
slowly and stays flat where predictions contradict each other, as for OOD images:

    q_i = A_i / max(Σ_c A_ic, 1),  m_i = 1[max q_i >= τ],  then  A_i <- A_i + p(w(x_i))
    τ = mean over validation images of max q_v
    L = mean_B H(y, p(w(x))) + r(t) · mean over {i : m_i = 1} of H(q_i, p(w(x_i))),  r = 0 in the first fifth

The second mean runs over labeled and unlabeled images alike and is 0 where none passes. Targets come from the
accumulator before this step's predictions enter it. Labeled and unlabeled images go through the network in one pass.
OOD score: 1 - max softmax, as the mean of past predictions exists for training images alone; it is what `kept` reports.

Reference: Chen et al., Semi-Supervised Learning under Class Distribution Mismatch, AAAI 2020. Differences:

- Validation images are looked at in eval mode at every refresh, not ten a step among the training images: there they
  would enter the batch norms' statistics. As in the release it is weak views of them (`gate_view`), because it is weak
  views whose predictions are accumulated: the plain view is predicted with more confidence, and a gate measured by it
  shuts out ID images. Without validation images labeled ones take their place.
- The input noise of the release is `input_noise`, its whitening is left out for the reason that supervised.py gives.
- What is accumulated is predicted without dropout, as the validation images' is.
- The first fifth without distillation and the ramp are shares of the run.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.distributed import gathered
from osp.methods._published import NoiseOptions
from osp.methods.base import Batch, Method, Part, Pool, Published, Stage, Step, Task
from osp.nets import Network
from osp.parts.consistency import noisy
from osp.parts.reduce import masked_mean

RELEASE = "UASD release"


class UASDOptions(NoiseOptions):
    start: float = Field(0.2, ge=0, le=1, description="share of the run before self-distillation begins")
    ramp: float = Field(0.4, ge=0, le=1, description="share of the run over which its weight rises, from its beginning")
    distillation_weight: float = Field(1.0, ge=0, description="largest weight of the self-distillation")
    refresh: float = Field(0.02, gt=0, le=1, description="share of the run between two looks at the validation images")
    gate_view: Literal["weak", "plain"] = Field("weak", description="view of the validation images that sets the gate")


def ensemble(accumulated: Tensor) -> Tensor:
    """q = A / max(Σ_c A_c, 1), row by row: the mean prediction, and 0 before the first visit.

    >>> ensemble(torch.tensor([[1.5, 0.5], [0.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [0.0000, 0.0000]])
    """
    return accumulated / accumulated.sum(dim=1, keepdim=True).clamp(min=1)


def distillation_loss(logits: Tensor, targets: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over {i : max q_i >= τ} of H(q_i, softmax(logits_i)), and which rows those are; 0 where there is none."""
    mask = targets.amax(dim=1) >= threshold
    return masked_mean(F.cross_entropy(logits.float(), targets, reduction="none"), mask), mask


class UASD(Method):
    name = "uasd"
    summary = "the mean of past predictions is an image's soft label; flat means are left out"
    reference = "Chen et al., Semi-Supervised Learning under Class Distribution Mismatch, AAAI 2020"
    Options = UASDOptions
    unlabeled_views = ("weak",)
    mechanism = ("gate_rate",)
    validation = "threshold of the gate, without labels (none: labeled images)"
    paper_steps = 500_000
    paper_data = ("cifar10", "cifar100", "tinyimagenet")
    paper = {  # noqa: RUF012
        **Published.all(RELEASE, batch=50, mu=1, optimizer="adam", lr=1e-3, weight_decay=0.0),
        **Published.all(RELEASE, schedule="steps", drop_factor=0.2, distillation_weight=1.0, gate_view="weak"),
        "drops": Published((0.8,), f"{RELEASE}: at 400,000 of 500,000"),
        "start": Published(0.2, f"{RELEASE}: 100,000 of 500,000"),
        "ramp": Published(0.4, f"{RELEASE}: 200,000 of 500,000"),
        "refresh": Published(0.001, f"{RELEASE}: 10 of 5,000 validation images per step"),
        "input_noise": Published(0.15, RELEASE, {"cifar100": 0.0, "tinyimagenet": 0.0}),
    }
    accumulated: Tensor
    validated: Tensor
    threshold: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        images = task.num_labeled + task.num_unlabeled
        self.register_buffer("accumulated", torch.zeros(images, task.num_classes))  # labeled, then unlabeled images
        self.register_buffer("validated", torch.zeros(task.num_val or task.num_labeled, task.num_classes))
        self.register_buffer("threshold", torch.tensor(0.9))
        self.predicted: Tensor | None = None  # by `losses`, for `after_step`

    def stages(self) -> list[Stage]:
        return [self.stage(refresh=self.options.refresh)]

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        labeled, unlabeled = batch["labeled"], batch["unlabeled"]
        images = torch.cat([labeled["weak"], unlabeled["weak"]])
        features = self.net.encode(noisy(images, self.options.input_noise, step.generator("noise both")))
        logits = self.net.classify(features)
        with torch.no_grad():
            self.predicted = self.net.classifier(features).float().softmax(dim=1)
        terms = {"ce": F.cross_entropy(logits[: len(labeled.rows)], labeled.targets)}
        if step.progress >= self.options.start:
            targets = ensemble(self.accumulated[self.joint_rows(batch)])
            loss, gate = distillation_loss(logits, targets, self.threshold)
            self.log("gate_rate", gate[len(labeled.rows) :].float().mean())
            terms["distillation"] = self.options.distillation_weight * step.sigmoid_ramp(self.options.ramp) * loss
        return terms

    def joint_rows(self, batch: Batch) -> Tensor:
        """Rows of the accumulator for the images of a step, in the order of the pass."""
        return torch.cat([batch["labeled"].rows, self.task.num_labeled + batch["unlabeled"].rows])

    def after_step(self, batch: Batch, step: Step) -> None:
        """A_i <- A_i + p(x_i); an image that is twice in the batch counts twice."""
        assert self.predicted is not None
        self.accumulated.index_add_(0, gathered(self.joint_rows(batch)), gathered(self.predicted))
        self.predicted = None

    def refresh(self, step: Step, pool: Pool) -> None:
        """Another prediction for every validation image, and the threshold from the means of all so far."""
        part: Part = "val" if self.task.num_val else "labeled"
        (probabilities,) = pool.map(
            lambda images: self.outputs(images)[1].softmax(dim=1), part=part, view=self.options.gate_view
        )
        self.validated += probabilities.to(self.validated.device)
        self.threshold.copy_(ensemble(self.validated).amax(dim=1).mean())
        self.log("threshold", self.threshold)

    def kept(self) -> Tensor | None:
        """The unlabeled images that pass the gate now."""
        return ensemble(self.accumulated[self.task.num_labeled :]).amax(dim=1) >= self.threshold
