"""Uniform noise, U[0, 1]: OOD images that show nothing."""

from osp.data.sources.gaussian import SOURCE

__all__ = ["SOURCE"]
