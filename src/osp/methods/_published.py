"""Published settings that several methods share.

Oliver et al., Realistic Evaluation of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018, is the source for the
classic methods; each adds its learning rate. In training they add Gaussian noise to the weak views. The releases of the
newer methods take over FixMatch's optimizer.
"""

from __future__ import annotations

from pydantic import Field

from osp.methods.base import Options, Published

OLIVER = "Oliver et al. 2018; the OSP paper does not state its recipe"
RECIPE = Published.all(
    OLIVER, optimizer="adam", schedule="steps", drops=(0.8,), drop_factor=0.2, weight_decay=0.0, input_noise=0.15
)
SEMI_SUPERVISED = {
    **RECIPE,
    "batch": Published(50, f"{OLIVER} (100 images per step, half of them labeled)"),
    "mu": Published(1, OLIVER),
    "ramp": Published(0.4, f"{OLIVER}: 200,000 of 500,000"),
}


def t2t_optimizer(source: str) -> dict[str, Published]:
    """The optimizer of T2T's release, which has other methods besides."""
    optimizer = Published.all(source, optimizer="sgd", momentum=0.9, nesterov=True, weight_decay=5e-4, decay_all=True)
    return optimizer | Published.all(source, batch=64, mu=5, lr=0.03, schedule="cosine-7/16")


def fixmatch_optimizer(source: str, cifar100_decay: float | None = None) -> dict[str, Published]:
    """FixMatch's optimizer, as a release that takes it over states it; its weight decay on CIFAR-100 may be another."""
    decay_by_data = {} if cifar100_decay is None else {"cifar100": cifar100_decay}
    return {
        **Published.all(source, batch=64, optimizer="sgd", lr=0.03, momentum=0.9, nesterov=True, decay_all=False),
        "weight_decay": Published(5e-4, source, decay_by_data),
        **Published.all(source, schedule="cosine-7/16", ema=0.999),
    }


class NoiseOptions(Options):
    input_noise: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise on the views, where pixels have one of about 1"
    )
