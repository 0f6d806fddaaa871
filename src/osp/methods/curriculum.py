"""Curriculum Labeling: cycles of self-training, each from new weights on a larger share of the pseudo-labeled pool.

Cycle 0 learns from the labeled images D_l. Before cycle c the model of the cycle before looks at the plain view of
every pool image: m_i = max p(u_i), ŷ_i = argmax p(u_i). The most confident enter, chosen again each time:

    D_c = D_l ∪ {(u_i, ŷ_i) : m_i >= percentile({m}, 100 - c·Δ)},  Δ = 20, so that cycle 5 learns from everything

Network and optimizer begin again in each cycle: a network that goes on believes the errors it was taught (the paper's
concept drift). Inside a cycle there is one loss, cross-entropy of strong views under mixup, a class counting by the
inverse of its size:

    x' = λ x_i + (1 - λ) x_j,  t = λ w_{y_i} e_{y_i} + (1 - λ) w_{y_j} e_{y_j},  λ ~ Beta(a, a),  w_c = (N - N_c) / N_c
    L = Σ -t·ln p(x') / Σ t,  w = 1 in cycle 0

A cycle's model is the mean of the weights over its last steps (SWA), with statistics of batch norms that are measured
again under it. The run ends with the model of the cycle with the best validation accuracy (the later one of equals, as
it has seen more), because the last cycles also learn the labels given to OOD images; without validation images it is
the last cycle's. OOD score: 1 - max softmax.

Reference: Cascante-Bonilla et al., Curriculum Labeling: Revisiting Pseudo-Labeling for SSL, AAAI 2021. Differences:

- λ is drawn for each image, not once a batch.
- The averaged weights are what is tested; the release measures batch norms under them and then puts the others back.
- Strong views are FixMatch's RandAugment, with operations drawn for each image and not once a cycle.
- A cycle's model is the one at its end, where the release looks for the best epoch: hooks do not validate each epoch.
- A step takes batch · (1 + mu) images from D_c, in one pass: as many as other methods, whatever D_c's mixture. The
  cycles have equal shares of the run; published are equal numbers of passes over a growing D_c.

The default learning rate is the published 0.1, not the harness's 0.03: each cycle has a sixth of a run to learn in.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods.base import Batch, Method, Options, Pool, Published, Stage, Step, StreamSpec, Task
from osp.nets import BATCH_NORMS, Network
from osp.parts.draws import beta, permutation
from osp.parts.mixing import mix
from osp.parts.reduce import weighted_mean
from osp.parts.weights import WeightStore

RELEASE = "CL release"


class CurriculumOptions(Options):
    lr: float = Field(0.1, gt=0, description="learning rate")
    admission: float = Field(0.2, gt=0, le=1, description="share of the pool that each cycle admits more than the last")
    mixup: float = Field(1.0, ge=0, description="a of mixup's Beta(a, a); 0 = no mixup")
    average: float = Field(
        0.25, ge=0, le=1, description="share of each cycle, at its end, over which weights are averaged"
    )


def admitted(confidence: Tensor, share: float) -> Tensor:
    """Which images lie at or above the percentile 100 · (1 - share) of the confidences (linear between two of them).

    >>> admitted(torch.tensor([0.1, 0.9, 0.5, 0.7, 0.3, 0.2]), 0.4).tolist()
    [False, True, True, True, False, False]
    >>> admitted(torch.tensor([0.1, 0.9, 0.5, 0.7, 0.3, 0.2]), 0.2).tolist()
    [False, True, False, True, False, False]
    """
    if len(confidence) == 0:
        return confidence.bool()
    place = round((1 - share) * (len(confidence) - 1), 9)  # 1 - 3 · 0.2 is not quite 0.4
    ordered = confidence.sort().values
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return confidence >= low + (high - low) * (place - math.floor(place))


def class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """w_c = (N - N_c) / N_c; a class without images weighs nothing.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), 3)
    tensor([0.3333, 3.0000, 0.0000])
    """
    counts = labels.bincount(minlength=num_classes).float()
    return torch.where(counts > 0, (len(labels) - counts) / counts.clamp(min=1), 0.0)


class Curriculum(Method):
    name = "curriculum"
    summary = "cycles from new weights, each with more of the pool pseudo-labeled, the confident first"
    reference = "Cascante-Bonilla et al., Curriculum Labeling, AAAI 2021"
    Options = CurriculumOptions
    mechanism = ("admitted_share",)
    validation = "choice of the cycle, with labels (none: the last cycle)"
    paper_steps = 215_000  # 6 cycles of 750 passes over 4,000 + c · 8,200 images of CIFAR-10 in batches of 512
    paper_data = ("cifar10",)
    paper = {  # noqa: RUF012
        **Published.all(f"{RELEASE}: 512 images of both kinds a step", batch=256, mu=1),
        **Published.all(RELEASE, optimizer="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, mixup=1.0),
        "schedule": Published("cosine", f"{RELEASE}: to 0 at epoch 750 of each cycle"),
        "admission": Published(0.2, "paper"),
        "average": Published(0.73, f"{RELEASE}: from epoch 200 of 750"),
    }
    best_accuracy: Tensor
    best_rows: Tensor
    pseudo: Tensor
    admitted_rows: Tensor
    weights: Tensor

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.averaged = WeightStore(network)
        self.best = WeightStore(network)
        self.register_buffer("best_accuracy", torch.tensor(-1.0))
        self.register_buffer("best_rows", torch.zeros(task.num_unlabeled, dtype=torch.bool))
        self.register_buffer("pseudo", torch.zeros(task.num_unlabeled, dtype=torch.int64))
        self.register_buffer("admitted_rows", torch.zeros(task.num_unlabeled, dtype=torch.bool))
        self.register_buffer("weights", torch.ones(task.num_classes))

    # Declarations

    def stages(self) -> list[Stage]:
        cycles = 1 + math.ceil(1 / self.options.admission - 1e-9)
        return [self.stage(name=f"cycle {number}", share=1 / cycles, fresh=number > 0) for number in range(cycles)]

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        return {"joint": StreamSpec("joint", self.options.batch * (1 + self.options.mu), ("strong",))}

    # A cycle

    def begin_stage(self, step: Step, pool: Pool) -> None:
        """Draw from the labeled images and those that the last cycle's model admitted."""
        device = self.pseudo.device
        pool.restrict("joint", self.joint_rows())
        if step.stage_index > 0:
            labels = torch.cat([pool.labels("labeled").to(device), self.pseudo[self.admitted_rows]])
            self.weights.copy_(class_weights(labels, self.task.num_classes))
        self.averaged.clear()
        self.log("admitted_share", self.admitted_rows.float().mean())

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        joint = batch["joint"]
        unlabeled_rows = (joint.rows - self.task.num_labeled).clamp(min=0)
        labels = torch.where(joint.targets >= 0, joint.targets, self.pseudo[unlabeled_rows])
        images, targets = joint["strong"], F.one_hot(labels, self.task.num_classes) * self.weights
        if self.options.mixup:
            share = beta(len(labels), self.options.mixup, step.generator("mixup"))
            order = permutation(len(labels), step.generator("order"))
            images, targets = mix(images, targets, share, order)
        log_probabilities = self.net(images).float().log_softmax(dim=1)
        return {"ce": weighted_mean(-log_probabilities, targets)}

    def after_step(self, batch: Batch, step: Step) -> None:
        if step.stage_step + 1 > (1 - self.options.average) * step.stage_steps:
            self.averaged.average(self.net)

    # Between cycles

    def end_stage(self, step: Step, pool: Pool) -> None:
        """Label the pool with this cycle's model, and keep that model if it is the best so far."""
        if self.options.average:
            self.averaged.restore(self.net)
            self.measure_batchnorms(pool)
        if self.task.num_val:
            self.remember(pool)
        last = step.stage_index == len(self.stages()) - 1
        if not last:
            self.admit(step.stage_index + 1, pool)
        elif self.task.num_val:
            self.best.restore(self.net)
            self.admitted_rows.copy_(self.best_rows)
            if not self.best_rows.any():
                pool.warn("no cycle did better on validation images than the first, which learned from labels alone")
        pool.restart_average()

    def measure_batchnorms(self, pool: Pool) -> None:
        """Running statistics of the averaged network, from a pass over strong views of what the cycle learned from."""
        layers = [layer for layer in self.net.modules() if isinstance(layer, BATCH_NORMS)]
        if not layers:
            return
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all chunks
        self.net.train()
        rows = self.joint_rows()
        pool.map(lambda images: self.net.encode(images)[:, 0], part="joint", rows=rows, view="strong", train=True)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum

    def joint_rows(self) -> Tensor:
        """The labeled images and those that are admitted, among both parts together."""
        admitted_rows = self.admitted_rows.nonzero().squeeze(1).cpu()
        return torch.cat([torch.arange(self.task.num_labeled), self.task.num_labeled + admitted_rows])

    def remember(self, pool: Pool) -> None:
        """Keep the network if no earlier cycle's did better on the validation images."""
        (logits,) = pool.map(lambda images: self.outputs(images)[1], part="val")
        accuracy = (logits.argmax(dim=1) == pool.labels("val").cpu()).float().mean()
        self.log("cycle_accuracy", 100 * accuracy)
        if accuracy >= self.best_accuracy:
            self.best.keep(self.net)
            self.best_accuracy.copy_(accuracy)
            self.best_rows.copy_(self.admitted_rows)

    def admit(self, cycle: int, pool: Pool) -> None:
        """Pseudo-labels of the whole pool, and which of them the next cycle learns from."""
        (logits,) = pool.map(lambda images: self.outputs(images)[1])
        confidence, labels = logits.double().softmax(dim=1).max(dim=1)  # single precision has many confidences of 1
        self.pseudo.copy_(labels)
        self.admitted_rows.copy_(admitted(confidence, min(cycle * self.options.admission, 1.0)))

    def kept(self) -> Tensor | None:
        """The images that the present cycle learns from; none in the first."""
        return self.admitted_rows if self.admitted_rows.any() else None
