"""OOD scores: one file each, found by its name; larger = more OOD, everywhere.

A score gives one number per image from its features, its logits and the classifier. A new one is one new file in this
folder, an entry point of the group `osp.scores` in an installed package, or a file of your own (`score=./mine.py`).
"""

from osp.scores.base import PoolScore, Score, last_layer
from osp.scores.registry import available, build, check, get, known

__all__ = ["PoolScore", "Score", "available", "build", "check", "get", "known", "last_layer"]
