"""The ideas of the paper as small pure pieces with their formulas."""

from osp.parts.bank import OODBank
from osp.parts.partition import otsu_threshold
from osp.parts.pruning import prune

__all__ = ["OODBank", "otsu_threshold", "prune"]
