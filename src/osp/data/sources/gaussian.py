"""Gaussian noise, N(0.5, 1) clipped to [0, 1]: OOD images that show nothing."""

from __future__ import annotations

from osp.data.sources._noise import NOISE

SOURCE = NOISE
