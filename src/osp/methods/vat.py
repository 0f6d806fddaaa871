"""VAT: the prediction must not change in the direction of a small perturbation that would change it most.

    q = p(u) without gradient;  d a random direction of length 1;  d <- g / ‖g‖ with g = ∇_d KL(q ‖ p(u + ξ d))
    r = ε d without gradient,  L_u = mean_u KL(q ‖ p(u + r))
    L = mean_B H(y, p(w(x))) + λ(t) L_u + entropy_weight · mean_u H(p(u)),
    λ(t) = weight · exp(-5 (1 - min(t / ramp, 1))²)

u is the weak view, the same tensor in every pass. Reference: Miyato et al., Virtual Adversarial Training, TPAMI 2019,
with the schedule of Oliver et al., NeurIPS 2018. OOD score: 1 - max softmax.

Passes: [w(x); u] for q, [w(x); u + ξd] for the direction, [w(x); u + r] for both losses. The labeled images go along
each time because batch norms that saw other images would change p by more than ξ does; for the same reason u goes
without the classifier's dropout, and an encoder that draws noise of its own draws the same in every pass. Only the
first pass moves the running statistics. q and the direction are computed in single precision under mixed precision too.

Differences: L_u is Miyato's KL(q ‖ p(u + r)) with Miyato's weight of 1, where Oliver et al. turn it round and give it
0.3. The labeled loss is taken from the last pass, which needs a graph anyhow; theirs is taken from the clean one
(`labeled_pass`). ξ is 0.01, not the published 1e-6, in the paper preset too: in single precision 1e-6 is less than the
rounding of a pixel, and the direction found has little to do with the one sought. ε is a length over the whole image:
published as 6 for 3x32x32, it is scaled to 6 · sqrt(CHW / 3072) unless set, so that the change of a single value keeps
its size (0.108; the published images were whitened, ours have unit variance: see supervised.py). Oliver's input noise
is `input_noise`. On stored features, whose scale is the backbone's, the ε of an image is 0.108 times the norm of its
features, which is the same where they have unit variance.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.methods._published import OLIVER, SEMI_SUPERVISED, NoiseOptions
from osp.methods.base import Batch, Method, Published, Step
from osp.nets import frozen_batchnorm_statistics
from osp.parts.consistency import kl_divergence, noisy
from osp.parts.draws import randn


class VATOptions(NoiseOptions):
    epsilon: float | None = Field(
        None, gt=0, description="length of the perturbation of an image; 6 · sqrt(CHW / 3072) if not set"
    )
    xi: float = Field(1e-2, gt=0, description="length of the step with which its direction is found")
    power_iterations: int = Field(1, ge=1, le=1000, description="steps in the search for the direction")
    unlabeled_weight: float = Field(1.0, ge=0, description="largest weight of the adversarial loss")
    ramp: float = Field(0.4, ge=0, le=1, description="share of the run over which that weight rises")
    entropy_weight: float = Field(0.0, ge=0, description="weight of the entropy of predictions (0.06 in VAT + EM)")
    labeled_pass: Literal["perturbed", "clean"] = Field(
        "perturbed", description="pass from which the labeled loss takes its predictions; clean costs a second graph"
    )


def unit(directions: Tensor, otherwise: Tensor | None = None) -> Tensor:
    """Each image's direction at length 1; where it is 0, or nothing sensible, the other one.

    Divided by the largest value first: the squares of a confident network's gradients would underflow.
    """
    flat = directions.flatten(1)
    largest = flat.abs().amax(dim=1, keepdim=True)
    scaled = F.normalize(flat / largest.clamp(min=torch.finfo(flat.dtype).tiny)).view_as(directions)
    if otherwise is None:
        return scaled
    sensible = ((largest > 0) & largest.isfinite()).view(-1, *[1] * (directions.ndim - 1))
    return torch.where(sensible, scaled, otherwise)


class VAT(Method):
    name = "vat"
    summary = "predictions must withstand the worst small perturbation"
    reference = "Miyato et al., Virtual Adversarial Training, TPAMI 2019"
    Options = VATOptions
    unlabeled_views = ("weak",)
    mechanism = ("adversarial_kl",)
    paper_steps = 500_000
    paper_data = ("cifar10",)
    paper = {  # noqa: RUF012
        **SEMI_SUPERVISED,
        **Published.all(OLIVER, lr=3e-3, power_iterations=1, unlabeled_weight=0.3, labeled_pass="clean"),
        "epsilon": Published(6.0, f"{OLIVER}: CIFAR-10, whitened; 1 on SVHN"),
        "entropy_weight": Published(0.0, f"{OLIVER}; 0.06 in its VAT + EM"),
    }

    @property
    def epsilon(self) -> float:
        """ε for images of this size."""
        chosen: float | None = self.options.epsilon
        return chosen if chosen is not None else 6.0 * math.sqrt(math.prod(self.task.shape) / (3 * 32 * 32))

    def length(self, images: Tensor) -> Tensor | float:
        """ε of each image: the same for all pixels, by the norm of stored features."""
        if len(self.task.shape) == 3 or self.options.epsilon is not None:
            return self.epsilon
        norms: Tensor = images.norm(dim=1, keepdim=True)
        return norms * (self.epsilon / math.sqrt(self.task.shape[0]))

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o = self.options
        known = noisy(batch["labeled"]["weak"], o.input_noise, step.generator("noise labeled"))
        # the same in every pass
        images = noisy(batch["unlabeled"]["weak"], o.input_noise, step.generator("noise unlabeled"))
        clean = o.labeled_pass == "clean"
        with torch.set_grad_enabled(clean or o.entropy_weight > 0), torch.autocast(images.device.type, enabled=False):
            clean_features = self.encode(known, images, step)
            clean_logits = self.net.classifier(clean_features[len(known) :])
        perturbation = self.perturbation(known, images, clean_logits.detach(), step)
        with frozen_batchnorm_statistics(self.net):
            features = self.encode(known, images + perturbation, step)
        logits = self.net.classifier(features[len(known) :]).float()
        learned = clean_features if clean else features
        change = kl_divergence(clean_logits.detach(), logits).mean()
        self.log("adversarial_kl", change)
        self.log("adversarial_flips", (logits.argmax(dim=1) != clean_logits.argmax(dim=1)).float().mean())
        terms = {
            "ce": F.cross_entropy(self.net.classify(learned[: len(known)]).float(), batch["labeled"].targets),
            "adversarial": o.unlabeled_weight * step.sigmoid_ramp(o.ramp) * change,
        }
        if o.entropy_weight > 0:
            log_p = clean_logits.log_softmax(dim=1)
            terms["entropy"] = o.entropy_weight * -(log_p.exp() * log_p).sum(dim=1).mean()
        return terms

    def encode(self, known: Tensor, images: Tensor, step: Step) -> Tensor:
        """Features of both sets from one pass, with the same noise at each call of this step."""
        torch.manual_seed(step.generator("noise").initial_seed() + step.rank)
        return self.net.encode(torch.cat([known, images]))

    def perturbation(self, known: Tensor, images: Tensor, clean_logits: Tensor, step: Step) -> Tensor:
        """r: a perturbation of length ε for each unlabeled image. The gradients of parameters stay as they are."""
        direction = randn(tuple(images.shape), step.generator("direction")).to(images.device, non_blocking=True)
        direction = unit(direction)
        with frozen_batchnorm_statistics(self.net), torch.autocast(images.device.type, enabled=False):
            for _ in range(self.options.power_iterations):
                direction = direction.detach().requires_grad_()
                features = self.encode(known, images + self.options.xi * direction, step)
                changed = kl_divergence(clean_logits, self.net.classifier(features[len(known) :])).sum()
                (gradient,) = torch.autograd.grad(changed, direction)
                direction = unit(gradient, otherwise=direction.detach())
        return self.length(images) * direction
