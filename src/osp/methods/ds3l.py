"""DS3L, safe deep semi-supervised learning: unlabeled images are weighted by what they do to the labeled ones.

A weight net v of one hidden layer gives each unlabeled image a weight in (0, 1) from its predicted probabilities. The
unlabeled loss is the Π-model's, l_i = mean_c (p_c(w'(u_i)) - sg[p_c(w(u_i))])²:

    inner  L(θ, φ) = a · mean_B H(y, p(w(x))) + b(t) · Σ_i v_i l_i / Σ_i v_i,  v_i = v_φ(p(w(u_i)))
    outer  min_φ mean_B H(y, p_θ'(w(x))),  θ' = θ - η ∇_θ L(θ, φ)

Each step first moves φ by the outer gradient, through one virtual step of plain SGD, then θ by the inner loss with the
new weights as constants. In the virtual step the weights depend on θ too. OOD score: 1 - v_φ(p(x)), the weight that the
image would have (`score=softmax` gives the usual one, which was better wherever it was measured).

What the weights can learn is the inner product of an image's consistency gradient with that of the labeled loss, and
in short runs this does not tell ID from OOD: a few labels are soon known by heart, and what is left of their gradient
is noise. No setting fixed that (a faster weight net ends with weights that are all 1 or all 0, as the loss does not
change when all weights are scaled). At the end of the run it is measured how well the weights tell validation images
(without any: labeled ones) from the pool, and a run in which they do not says so.

Reference: Guo et al., Safe Deep Semi-Supervised Learning for Unseen-Class Unlabeled Data, ICML 2020. Passes: labeled
images and both views in one, whose graph serves the virtual and the real step; then the labeled images under θ', which
leaves the running statistics of batch norms alone. The release makes five passes, as it repeats the first two.
Differences:

- The weight net learns at 3e-3, not 6e-5, because a run has a hundredth of the published steps; η is the
  common learning rate 0.03, as both were 1e-3 in the release's MNIST recipe (short runs on color images take real
  steps by Muon, at another rate).
- a is 1. The release divides the labeled sum by the whole batch: 1/2 with as many unlabeled images as labeled.
- What the weight net sees, and the target, are predicted without dropout.
- The ramp of b is a share of the run.
- The published rates of MNIST, 1e-3 for both steps, belong to raw pixels of 0 to 255, whose variance is 6,000 times
  that of ours; the paper preset has them as they are, as no factor would turn them into rates for all layers alike.
- The input noise of the release on CIFAR-10 is `input_noise`, its whitening is left out (supervised.py says why).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from osp.distributed import gathered, summed_with_gradient, world
from osp.methods._published import NoiseOptions
from osp.methods.base import Batch, ExtraOptimizer, Method, Part, Pool, Published, Step, Task
from osp.nets import Network, frozen_batchnorm_statistics
from osp.parts.consistency import noisy
from osp.parts.reduce import weighted_mean
from osp.scores.usefulness import UsefulnessScore

RELEASE = "DS3L release"
CIFAR = ("cifar10", "cifar100")
TELLS_APART = 0.55
"""Share of pairs in which a known image outweighs one of the pool, below which weights say nothing; 0.5 is chance."""


class DS3LOptions(NoiseOptions):
    labeled_weight: float = Field(1.0, gt=0, description="weight a of the labeled loss")
    unlabeled_weight: float = Field(10.0, ge=0, description="largest weight b of the unlabeled loss")
    ramp: float = Field(1.0, ge=0, le=1, description="share of the run over which b rises")
    inner_lr: float = Field(0.03, ge=0, description="length η of the virtual step")
    weight_lr: float = Field(3e-3, gt=0, description="learning rate of the weight net (Adam)")
    hidden: int = Field(100, ge=1, le=65536, description="hidden units of the weight net")


@dataclass(frozen=True)
class Looked:
    """What the network made of a step's images, with its graph and in single precision."""

    labeled_logits: Tensor
    probabilities: Tensor
    """Of the first view of the unlabeled images."""
    gaps: Tensor
    """l, one an unlabeled image."""


def consistency_gaps(probabilities: Tensor, target: Tensor) -> Tensor:
    """l_i = mean_c (p_ic - q_ic)², without gradient into q.

    >>> consistency_gaps(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    tensor([0.2500])
    """
    return (probabilities - target.detach()).square().mean(dim=1)


def outweighs(first: Tensor, second: Tensor) -> float:
    """Share of pairs in which one of the first is larger than one of the second; equal ones count one half.

    >>> outweighs(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))  # a half, and two of two
    0.625
    """
    ordered = second.sort().values
    places = torch.searchsorted(ordered, first) + torch.searchsorted(ordered, first, right=True)
    return places.double().mean().item() / (2 * len(second))


def uncompiled() -> AbstractContextManager[Any]:
    """Inside, a compiled network runs as it was written: compiled ones cannot be differentiated twice."""
    stance = getattr(torch.compiler, "set_stance", None)  # from torch 2.6 on
    return stance("force_eager") if stance is not None else nullcontext()


class DS3L(Method):
    name = "ds3l"
    summary = "a weight net learns which unlabeled images help the labeled ones"
    reference = "Guo et al., Safe Deep Semi-Supervised Learning for Unseen-Class Unlabeled Data, ICML 2020"
    Options = DS3LOptions
    unlabeled_views = ("weak", "weak2")
    twice_differentiated = True
    mechanism = ("weight_spread",)
    validation = "whether the weights tell known images from the pool, without labels (none: labeled images)"
    paper_steps = 200_000
    paper_data = ("mnist", "cifar10")
    paper = {  # noqa: RUF012
        **Published.all(RELEASE, batch=50, mu=1, weight_decay=0.0, unlabeled_weight=10.0, ramp=1.0),
        **Published.all(RELEASE, weight_lr=6e-5, hidden=100),
        "optimizer": Published("sgd", f"{RELEASE}, MNIST", dict.fromkeys(CIFAR, "adam")),
        "lr": Published(1e-3, f"{RELEASE}, MNIST, for raw pixels of 0 to 255", dict.fromkeys(CIFAR, 3e-4)),
        **Published.all(f"{RELEASE}, MNIST", momentum=0.0, nesterov=False),
        "schedule": Published("constant", f"{RELEASE}: its drop at 400,000 is never reached"),
        "labeled_weight": Published(0.5, f"{RELEASE}: the sum over the labeled half divided by the whole batch"),
        "inner_lr": Published(1e-3, f"{RELEASE}, on MNIST for raw pixels of 0 to 255"),
        "input_noise": Published(0.0, f"{RELEASE}, MNIST", dict.fromkeys(CIFAR, 0.15)),
    }
    own_score: UsefulnessScore
    """v_φ."""

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__(options, network, task)
        self.use_score(UsefulnessScore(network.feature_dim, task.num_classes, options.hidden))
        self.looked: Looked | None = None  # by `extra_losses`, for `losses` of the same step

    def extra_optimizers(self) -> dict[str, ExtraOptimizer]:
        return {"weight_net": ExtraOptimizer(self.own_score.net.parameters(), lr=self.options.weight_lr)}

    def look(self, batch: Batch, step: Step) -> Looked:
        """Labeled images and both views of the unlabeled ones in one pass."""
        views = [batch["labeled"]["weak"], batch["unlabeled"]["weak"], batch["unlabeled"]["weak2"]]
        images = noisy(torch.cat(views), self.options.input_noise, step.generator("noise all"))
        labeled, first, second = torch.split(self.net.encode(images), [len(view) for view in views])
        labeled_logits, second_logits = torch.tensor_split(
            self.net.classify(torch.cat([labeled, second])).float(), [len(labeled)]
        )
        probabilities = self.net.classifier(first).float().softmax(dim=1)
        return Looked(labeled_logits, probabilities, consistency_gaps(second_logits.softmax(dim=1), probabilities))

    def labeled_loss(self, looked: Looked, batch: Batch) -> Tensor:
        weight: float = self.options.labeled_weight
        return weight * F.cross_entropy(looked.labeled_logits, batch["labeled"].targets)

    def unlabeled_weight(self, step: Step) -> float:
        """b(t)."""
        weight: float = self.options.unlabeled_weight * step.sigmoid_ramp(self.options.ramp)
        return weight

    # The weight net

    def extra_losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """The outer loss: what the labeled images would say after a virtual step with these weights."""
        with uncompiled():
            self.looked = self.look(batch, step)
        weights = self.own_score.weigh(self.looked.probabilities)
        total = summed_with_gradient(weights.sum()) / world()  # over several processes Σ v is that of the global batch
        unlabeled = (weights * self.looked.gaps).sum() / total.clamp(min=1e-12)
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
            if gradient is not None:
                gradient = summed_with_gradient(gradient) / world()
            moved[name] = parameter if gradient is None else parameter - self.options.inner_lr * gradient
        return moved

    # The network

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """The inner loss with the new weights; the graph is that of `extra_losses`, if this was called."""
        looked, self.looked = self.looked or self.look(batch, step), None
        with torch.no_grad():
            weights = self.own_score.weigh(looked.probabilities)
        everyone = gathered(weights)
        self.log("weight_mean", everyone.mean())
        self.log("weight_spread", everyone.std(unbiased=False) / everyone.mean())
        return {
            "ce": self.labeled_loss(looked, batch),
            "consistency": self.unlabeled_weight(step) * weighted_mean(looked.gaps, weights),
        }

    # The trained model

    def end_stage(self, step: Step, pool: Pool) -> None:
        """Do the weights tell images of known classes from the pool?"""
        part: Part = "val" if self.task.num_val else "labeled"
        (known,), (others,) = (
            pool.map(lambda images: 1 - self.outputs(images)[2], part=each) for each in (part, "unlabeled")
        )
        order = outweighs(known, others)
        self.log("weight_order", order)
        if order < TELLS_APART:
            pool.warn(
                f"a known image outweighs one of the pool in {100 * order:.0f} % of pairs, where 50 is chance: "
                "DS3L's weights do not find OOD images, and it works as the Pi-Model"
            )
