"""DS3L, safe deep semi-supervised learning: unlabelled images are weighted by what they do to the labelled ones.

A weight net v of one hidden layer gives each unlabelled image a weight in (0, 1) from its predicted probabilities. The
unlabelled loss is the Π-model's, l_i = mean_c (p_c(w'(u_i)) - sg[p_c(w(u_i))])²:

    inner  L(θ, φ) = a · mean_B H(y, p(w(x))) + b(t) · Σ_i v_i l_i / Σ_i v_i,  v_i = v_φ(p(w(u_i)))
    outer  min_φ mean_B H(y, p_θ'(w(x))),  θ' = θ - η ∇_θ L(θ, φ)

Each step first moves φ by the outer gradient, through one virtual step of plain SGD, then θ by the inner loss with the
new weights as constants. In the virtual step the weights depend on θ too. OOD score: 1 - max softmax.

Reference: Guo et al., Safe Deep Semi-Supervised Learning for Unseen-Class Unlabeled Data, ICML 2020. Passes: labelled
images and both views in one, whose graph serves the virtual and the real step; then the labelled images under θ', which
leaves the running statistics of batch norms alone. The release makes five passes, as it repeats the first two.
Differences:

- The weight net learns at 3e-3, not 6e-5, because a run has a hundredth of the published steps; η is the real
  learning rate 0.03, as it was in the release's MNIST recipe, where both are 1e-3.
- a is 1. The release divides the labelled sum by the whole batch: 1/2 with as many unlabelled images as labelled.
- What the weight net sees, and the target, are predicted without dropout.
- The ramp of b is a share of the run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from osp.methods.base import Batch, ExtraOptimizer, Method, Options, Published, Step, Task
from osp.nets import Network, frozen_batchnorm_statistics
from osp.parts.reduce import weighted_mean

RELEASE = "DS3L release"


class DS3LOptions(Options):
    labeled_weight: float = Field(1.0, gt=0, description="weight a of the labelled loss")
    unlabeled_weight: float = Field(10.0, ge=0, description="largest weight b of the unlabelled loss")
    ramp: float = Field(1.0, ge=0, le=1, description="share of the run over which b rises")
    inner_lr: float = Field(0.03, ge=0, description="length η of the virtual step")
    weight_lr: float = Field(3e-3, gt=0, description="learning rate of the weight net (Adam)")
    hidden: int = Field(100, ge=1, description="hidden units of the weight net")


@dataclass(frozen=True)
class Looked:
    """What the network made of a step's images, with its graph and in single precision."""

    labeled_logits: Tensor
    probabilities: Tensor
    """Of the first view of the unlabelled images."""
    gaps: Tensor
    """l, one an unlabelled image."""


def consistency_gaps(probabilities: Tensor, target: Tensor) -> Tensor:
    """l_i = mean_c (p_ic - q_ic)², without gradient into q.

    >>> consistency_gaps(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor([0.2500])
    """
    return (probabilities - target.detach()).square().mean(dim=1)


def uncompiled() -> AbstractContextManager[Any]:
    """Inside, a compiled network runs as it was written: compiled ones cannot be differentiated twice."""
    stance = getattr(torch.compiler, "set_stance", None)  # from torch 2.6 on
    return stance("force_eager") if stance is not None else nullcontext()


class DS3L(Method):
    name = "ds3l"
    summary = "a weight net learns which unlabelled images help the labelled ones"
    reference = "Guo et al., Safe Deep Semi-Supervised Learning for Unseen-Class Unlabeled Data, ICML 2020"
    Options = DS3LOptions
    unlabeled_views = ("weak", "weak2")
    mechanism = ("weight_spread",)
    paper_steps = 200_000
    paper = {  # noqa: RUF012
        "batch": Published(50, RELEASE),
        "mu": Published(1, RELEASE),
        "optimizer": Published("sgd", f"{RELEASE}, MNIST (CIFAR-10: Adam, 3e-4)"),
        "lr": Published(1e-3, f"{RELEASE}, MNIST"),
        "momentum": Published(0.0, f"{RELEASE}, MNIST"),
        "nesterov": Published(False, f"{RELEASE}, MNIST"),
        "weight_decay": Published(0.0, RELEASE),
        "schedule": Published("constant", f"{RELEASE}: its drop at 400,000 is never reached"),
        "labeled_weight": Published(0.5, f"{RELEASE}: the sum over the labelled half divided by the whole batch"),
        "unlabeled_weight": Published(10.0, RELEASE),
        "ramp": Published(1.0, RELEASE),
        "inner_lr": Published(1e-3, RELEASE),
        "weight_lr": Published(6e-5, RELEASE),
        "hidden": Published(100, RELEASE),
    }
    training_only = ("weight_net",)

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.weight_net = nn.Sequential(
            nn.Linear(task.num_classes, options.hidden), nn.ReLU(), nn.Linear(options.hidden, 1), nn.Sigmoid()
        )
        self.looked: Looked | None = None  # by `extra_losses`, for `losses` of the same step

    def extra_optimizers(self) -> dict[str, ExtraOptimizer]:
        return {"weight_net": ExtraOptimizer(self.weight_net.parameters(), lr=self.options.weight_lr)}

    def look(self, batch: Batch) -> Looked:
        """Labelled images and both views of the unlabelled ones in one pass."""
        views = [batch["labeled"]["weak"], batch["unlabeled"]["weak"], batch["unlabeled"]["weak2"]]
        labeled, first, second = torch.split(self.net.encode(torch.cat(views)), [len(view) for view in views])
        labeled_logits, second_logits = torch.tensor_split(
            self.net.classify(torch.cat([labeled, second])).float(), [len(labeled)]
        )
        probabilities = self.net.classifier(first).float().softmax(dim=1)
        return Looked(labeled_logits, probabilities, consistency_gaps(second_logits.softmax(dim=1), probabilities))

    def weigh(self, probabilities: Tensor) -> Tensor:
        """v_φ, in single precision."""
        with torch.autocast(probabilities.device.type, enabled=False):
            weights: Tensor = self.weight_net(probabilities)
            return weights[:, 0]

    def labeled_loss(self, looked: Looked, batch: Batch) -> Tensor:
        weight: float = self.options.labeled_weight
        return weight * F.cross_entropy(looked.labeled_logits, batch["labeled"].targets)

    def unlabeled_weight(self, step: Step) -> float:
        """b(t)."""
        weight: float = self.options.unlabeled_weight * step.sigmoid_ramp(self.options.ramp)
        return weight

    # The weight net

    def extra_losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """The outer loss: what the labelled images would say after a virtual step with these weights."""
        with uncompiled():
            self.looked = self.look(batch)
        weights = self.weigh(self.looked.probabilities)
        unlabeled = (weights * self.looked.gaps).sum() / weights.sum()
        inner = self.labeled_loss(self.looked, batch) + self.unlabeled_weight(step) * unlabeled
        with frozen_batchnorm_statistics(self.net), uncompiled():
            logits = functional_call(self.net, self.virtual_step(inner), (batch["labeled"]["weak"],))
        return {"weight_net": F.cross_entropy(logits.float(), batch["labeled"].targets)}

    def virtual_step(self, inner: Tensor) -> dict[str, Tensor]:
        """θ' = θ - η ∇_θ L, with the graph that leads to φ."""
        parameters = {name: each for name, each in self.net.named_parameters() if each.requires_grad}
        gradients = torch.autograd.grad(inner, list(parameters.values()), create_graph=True, allow_unused=True)
        moved = {}
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            moved[name] = parameter if gradient is None else parameter - self.options.inner_lr * gradient
        return moved

    # The network

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """The inner loss with the new weights; the graph is that of `extra_losses`, if this was called."""
        looked, self.looked = self.looked or self.look(batch), None
        with torch.no_grad():
            weights = self.weigh(looked.probabilities)
        self.log("weight_mean", weights.mean())
        self.log("weight_spread", weights.std(unbiased=False) / weights.mean())
        return {
            "ce": self.labeled_loss(looked, batch),
            "consistency": self.unlabeled_weight(step) * weighted_mean(looked.gaps, weights),
        }
