"""OTCT (a reconstruction): consistency under augmentation on all unlabeled images, in the style of labeled ones.

    b = a labeled weak view drawn for each unlabeled image, β ~ U(0, 1)
    s' = (1 - β) s(u) + β AdaIN(s(u); b)                  channel statistics of b (osp.parts.style)
    L  = mean_B H(y, p(w(x))) + weight · mean_μB KL(softmax(sg[f(w(u))] / T) ‖ p(s'))

No image is filtered out: the point of the publication is that consistency on all images helps where pseudo-labels harm,
if the gap between the styles of labeled and unlabeled images is bridged. OOD score: 1 - max softmax.

Reference: Luo et al., An Empirical Study and Analysis on Open-Set Semi-Supervised Learning, arXiv 2101.08237. THIS IS A
RECONSTRUCTION from its abstracts and one sentence of the OSP paper: no code is public, the full text was not available.
Do not present its numbers as those of the publication. Choices of ours, none of them verified:

- AdaIN acts on images (not on feature maps), its donors are the labeled images of the same batch, β is uniform,
  there is no confidence mask, all else is as UDA has it in the release of T2T;
- of grey images only brightness and contrast are style. Those of MNIST hardly differ in either, so that what is left
  there is mostly UDA without its mask; `style_change` is logged;
- T is 1: sharpened targets are pseudo-labels in all but name. With UDA's 0.4, which `--preset paper` has, digits with
  60 % OOD images were learned worse than from the labels alone, and hardly distinguished from OOD images.

Labeled and stylized images go through the network in one pass, the weak views without a graph and as in testing.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from osp.distributed import gathered
from osp.methods._published import t2t_optimizer
from osp.methods.base import Batch, Method, Options, Published, Step
from osp.parts.consistency import sharpened_consistency
from osp.parts.draws import rand
from osp.parts.style import stylize

UDA = "UDA in the T2T release; that of OTCT is not public"


class OTCTOptions(Options):
    temperature: float = Field(1.0, gt=0, description="sharpening of the targets; 1 is none")
    threshold: float = Field(
        0.0, ge=0, le=1, description="confidence from which an image takes part; 0 takes all, as the publication wants"
    )
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of the consistency")
    style_strength: float | None = Field(
        None, ge=0, le=1, description="strength of the style transfer; uniform from 0 to 1 for each image if not set"
    )


class OTCT(Method):
    name = "otct"
    summary = "consistency on all images in the style of labeled ones (reconstruction)"
    reference = "Luo et al., arXiv 2101.08237 (reconstruction: no code is public)"
    Options = OTCTOptions
    unlabeled_views = ("weak", "strong")
    needs_pixels = True  # style is a matter of channels
    mechanism = ("style_change", "consistency_rate")
    paper_data = ()
    paper: ClassVar[dict[str, Published]] = {
        **t2t_optimizer(UDA),
        **Published.all(UDA, temperature=0.4, unlabeled_weight=1.0),
    }

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        o, labeled, unlabeled = self.options, batch["labeled"], batch["unlabeled"]
        with torch.no_grad():
            weak_logits = self.net.classifier(self.net.encode_as_tested(unlabeled["weak"])).float()
        styled = self.styled(unlabeled["strong"], labeled["weak"], step)
        self.log("style_change", (styled - unlabeled["strong"]).abs().mean())
        logits = self.net(torch.cat([labeled["weak"], styled])).float()
        labeled_logits, styled_logits = logits[: len(labeled.rows)], logits[len(labeled.rows) :]
        consistency, mask = sharpened_consistency(weak_logits, styled_logits, o.temperature, o.threshold, least=1.0)
        self.log("consistency_rate", mask.float().mean())
        return {
            "ce": F.cross_entropy(labeled_logits, labeled.targets),
            "consistency": o.unlabeled_weight * consistency,
        }

    def styled(self, images: Tensor, labeled: Tensor, step: Step) -> Tensor:
        """The images in the style of randomly drawn labeled ones."""
        chance = rand((len(images), 2), step.generator("style")).to(images.device, non_blocking=True)
        labeled = gathered(labeled)
        donors = labeled[(chance[:, 0] * len(labeled)).long()]  # rand is below 1, and so is its product
        strength = chance[:, 1]
        if self.options.style_strength is not None:
            strength = torch.full_like(strength, self.options.style_strength)
        return stylize(images, donors, strength)
