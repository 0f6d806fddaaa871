"""The recipe of Oliver et al., Realistic Evaluation of Deep Semi-Supervised Learning Algorithms, NeurIPS 2018.

It is where the published settings of the classic methods come from; each adds its learning rate.
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
    "batch": Published(50, f"{OLIVER} (100 images a step, half of them labelled)"),
    "mu": Published(1, OLIVER),
    **OPTIMIZER,
}
