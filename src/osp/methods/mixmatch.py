"""MixMatch: guessed labels for unlabeled images, everything mixed with everything, and two losses on the mixtures.

    q̄ = (p(w(u)) + p(w'(u))) / 2,  q = q̄^(1/T) / Σ q̄^(1/T), without gradient
    W = [w(x); w(u); w'(u)] with targets [y; q; q];  λ ~ Beta(a, a),  λ' = max(λ, 1 - λ),  π a permutation
    X = λ' W + (1 - λ') W[π], targets likewise
    L = mean_B H(target, p(X)) + weight · min(t / ramp, 1) · mean over the other rows and classes of (p(X) - target)²

The first B rows are mostly labeled images because λ' >= 1/2. Tested with averaged weights. Reference: Berthelot et
al., MixMatch: A Holistic Approach to Semi-Supervised Learning, NeurIPS 2019. OOD score: 1 - max softmax.

Passes: [w(u); w'(u)] without a graph, batch norms using the batch but not remembering it; then X jointly, which makes
the publication's interleaving of batches unnecessary.

Differences: weight decay touches weight matrices alone, as in the release (a well-known port also shrinks the batch
norms' running statistics); guesses are made without dropout. The unlabeled weight is 3 and rises over the whole run:
with the published 75 the guesses of a short run agree on one class early and stay there. μ is 1 as published instead of
the common 5, because the partner in a mixture is a labeled image in one of 1 + 2μ cases, and labels would be diluted
further.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from osp.methods.base import Batch, Method, Options, Published, Step
from osp.nets import frozen_batchnorm_statistics
from osp.parts.mixing import guess_labels, mixmatch_losses, mixtures

MIXMATCH = "MixMatch paper"
RELEASE = "MixMatch release"


class MixMatchOptions(Options):
    mu: int = Field(1, ge=1, le=10**9, description="unlabeled images per step, as a multiple of `batch`")
    temperature: float = Field(0.5, gt=0, description="sharpening of the guessed labels")
    mixing: float = Field(0.75, gt=0, description="a of the Beta(a, a) distribution of the mixing weights")
    unlabeled_weight: float = Field(3.0, ge=0, description="largest weight of the unlabeled loss")
    ramp: float = Field(1.0, ge=0, le=1, description="share of the run over which that weight rises")


class MixMatch(Method):
    name = "mixmatch"
    summary = "guessed labels, and mixtures of labeled and unlabeled images"
    reference = "Berthelot et al., MixMatch, NeurIPS 2019"
    Options = MixMatchOptions
    unlabeled_views = ("weak", "weak2")
    mechanism = ("mixed_share", "guess_gap")
    paper_steps = 2**20
    paper_data = ("cifar10", "cifar100", "stl10")
    paper = {  # noqa: RUF012
        **Published.all(MIXMATCH, batch=64, mu=1, lr=2e-3, schedule="constant", ema=0.999),
        "optimizer": Published("adamw", f"{MIXMATCH}: Adam with decoupled weight decay"),
        "weight_decay": Published(0.02, f"{RELEASE}: kernels times 1 - 0.02 lr a step", {"cifar100": 0.04}),
        "decay_all": Published(False, RELEASE),
        **Published.all(MIXMATCH, temperature=0.5, mixing=0.75),
        "unlabeled_weight": Published(75.0, f"{RELEASE}: CIFAR-10; 250 on SVHN", {"cifar100": 150.0, "stl10": 50.0}),
        "ramp": Published(2**-6, f"{RELEASE}: 2^20 of 2^26 images, 16,384 of 2^20 steps"),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o, labeled, unlabeled = self.options, batch["labeled"], batch["unlabeled"]
        looks = torch.cat([unlabeled["weak"], unlabeled["weak2"]])
        guessed = self.guess(looks)
        mixed, targets, weights = mixtures(labeled["weak"], labeled.targets, looks, guessed, o.mixing, step.generator)
        cross_entropy, squares = mixmatch_losses(self.net(mixed), targets, len(labeled.rows))
        self.log("mixed_share", (1 - weights).mean())
        self.log("guess_confidence", guessed.amax(dim=1).mean())
        self.log("guess_gap", self.task.num_classes * squares)
        weight = o.unlabeled_weight * step.linear_ramp(o.ramp)
        return {"ce": cross_entropy, "guess": weight * squares}

    @torch.no_grad()
    def guess(self, looks: Tensor) -> Tensor:
        """The labels guessed from two views of each unlabeled image, which lie one after the other."""
        with frozen_batchnorm_statistics(self.net):
            logits = self.net.classifier(self.net.encode(looks))
        return guess_labels(logits.chunk(2), self.options.temperature)
