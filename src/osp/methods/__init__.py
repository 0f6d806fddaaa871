"""Methods: one file each, and the base they share."""

from osp.methods.base import Method, Options, Published
from osp.methods.declared import Batch, ExtraOptimizer, Pool, Sample, Stage, Step, StreamSpec, Task

__all__ = ["Method", "Options", "Published", "available", "get"]
__all__ += ["Batch", "ExtraOptimizer", "Pool", "Sample", "Stage", "Step", "StreamSpec", "Task"]


def available() -> list[str]:
    """Names of all methods."""
    from osp.methods.registry import available as names

    return names()


def get(name: str) -> type[Method]:
    """The class of the method of this name, or of this file: whoever calls this names it."""
    from osp.methods.registry import get as find
    from osp.plugins import trust

    trust(name)
    return find(name)
