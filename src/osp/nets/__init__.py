"""Networks: encoders and the classifier on top."""

from osp.nets.backbones import NAMES, build_encoder
from osp.nets.network import (
    BATCH_NORMS,
    Network,
    StepDropout,
    as_tested,
    batchnorm_momentum,
    build_network,
    frozen_batchnorm_statistics,
    set_batchnorm_momentum,
)

__all__ = [
    "BATCH_NORMS",
    "NAMES",
    "Network",
    "StepDropout",
    "as_tested",
    "batchnorm_momentum",
    "build_encoder",
    "build_network",
    "frozen_batchnorm_statistics",
    "set_batchnorm_momentum",
]
