"""Networks: one file per encoder, and the classifier on top."""

from osp.nets.batchnorm import BATCH_NORMS, spread
from osp.nets.network import (
    Network,
    StepDropout,
    as_tested,
    batchnorm_momentum,
    build_network,
    frozen_batchnorm_statistics,
    set_batchnorm_momentum,
)
from osp.nets.registry import NetworkSpec, Shape, available, build_encoder, check_name

__all__ = [
    "BATCH_NORMS",
    "Network",
    "NetworkSpec",
    "Shape",
    "StepDropout",
    "as_tested",
    "available",
    "batchnorm_momentum",
    "build_encoder",
    "build_network",
    "check_name",
    "frozen_batchnorm_statistics",
    "set_batchnorm_momentum",
    "spread",
]
