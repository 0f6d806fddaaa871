"""Choosing the device and the arithmetic, through lightning-fabric."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import warnings
from typing import TYPE_CHECKING

import torch

from osp.errors import UserError
from osp.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


DEFAULT_THREADS = torch.get_num_threads()


def open_fabric(recipe: Recipe) -> Fabric:
    """Fabric on one device: CUDA where there is one, then MPS, then the CPU; or the one the recipe names."""
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning_fabric")
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: this machine has no CUDA device. Use --set device=cpu, or auto.")
    if recipe.device == "mps" and not torch.backends.mps.is_available():
        raise UserError("device: this machine has no MPS device. Use --set device=cpu, or auto.")
    if recipe.precision == "16-mixed" and not (torch.cuda.is_available() and recipe.device in ("auto", "cuda")):
        raise UserError("precision: 16-mixed needs a CUDA device. Use --set precision=bf16-mixed, or 32-true.")
    torch.set_num_threads(recipe.threads or DEFAULT_THREADS)
    fabric = Fabric(accelerator=recipe.device, devices=1, precision=recipe.precision)
    if fabric.device.type == "cpu":
        keep_freed_memory()
    if fabric.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    return fabric


def keep_freed_memory(most: int = 2**30) -> bool:
    """Tell glibc's allocator to keep what a step has freed for the next one; whether it was told.

    By default it gives the free top of its heap back to the system as soon as that is large. Where a step ends so,
    which depends on the addresses of the day, the next one fetches its memory again page by page: three of eight runs
    with the CNN took 89 instead of 64 ms a step, with 20,000 page faults each. Now the top goes back from `most` bytes
    on, in this process, for good. Settings of the user's own (MALLOC_..., GLIBC_TUNABLES) stand.
    """
    own = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if own or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(mmap_threshold, 2**25) and libc.mallopt(trim_threshold, most))  # 32 MB is the largest
