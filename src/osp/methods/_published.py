"""Published settings that several methods share.

Oliver et al., Realistic Evaluation of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018, is the source for the
classic methods; each adds its learning rate. The releases of the newer ones take over FixMatch's optimizer.
"""

from __future__ import annotations

from osp.methods.base import Published

OLIVER = "Oliver et al. 2018; the OSP paper does not state its recipe"

OPTIMIZER = {
    "optimizer": Published("adam", OLIVER),
    "schedule": Published("steps", OLIVER),
    "drops": Published((0.8,), OLIVER),
    "drop_factor": Published(0.2, OLIVER),
    "weight_decay": Published(0.0, OLIVER),
}
SEMI_SUPERVISED = {
    "batch": Published(50, f"{OLIVER} (100 images per step, half of them labeled)"),
    "mu": Published(1, OLIVER),
    **OPTIMIZER,
}


def fixmatch_optimizer(source: str, cifar100_decay: float | None = None) -> dict[str, Published]:
    """FixMatch's optimizer, as a release that takes it over states it; its weight decay on CIFAR-100 may be another."""
    decay_by_data = {} if cifar100_decay is None else {"cifar100": cifar100_decay}
    return {
        "batch": Published(64, source),
        "optimizer": Published("sgd", source),
        "lr": Published(0.03, source),
        "momentum": Published(0.9, source),
        "nesterov": Published(True, source),
        "weight_decay": Published(5e-4, source, decay_by_data),
        "decay_all": Published(False, source),
        "schedule": Published("cosine-7/16", source),
        "ema": Published(0.999, source),
    }
