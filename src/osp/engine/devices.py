"""Choosing the device and the arithmetic, through lightning-fabric."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from osp.errors import UserError
from osp.recipe import Plan

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def check_device(device: str, precision: str) -> None:
    """Refuse a device that this machine lacks."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device.startswith("cuda") and not cuda:
        raise UserError("device: this machine has no CUDA device. Use --set device=cpu, or auto.")
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"device: {device} asked for, but this machine's CUDA devices are 0 to {count - 1}.")
    if device == "mps" and not mps:
        raise UserError("device: this machine has no MPS device. Use --set device=cpu, or auto.")
    if precision == "16-mixed" and not (cuda and (device == "auto" or device.startswith("cuda"))):
        raise UserError("precision: 16-mixed needs a CUDA device. Use --set precision=bf16-mixed, or 32-true.")


def open_fabric(plan: Plan) -> Fabric:
    """Fabric on one device: CUDA where there is one, then MPS, then the CPU; or the one the plan names."""
    from lightning_fabric import Fabric

    check_device(plan.device, plan.precision)
    accelerator, _, number = plan.device.partition(":")
    return Fabric(accelerator=accelerator, devices=[int(number)] if number else 1, precision=plan.precision)


@contextmanager
def process_settings(plan: Plan) -> Iterator[None]:
    """What a run changes in its process, put back at the end: threads, cuDNN's search, random state, warnings."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    logger = logging.getLogger("lightning_fabric")
    level = logger.level
    with warnings.catch_warnings(), torch.random.fork_rng():
        try:
            warnings.filterwarnings("ignore", module="lightning_fabric")
            logger.setLevel(logging.WARNING)
            if plan.threads is not None:
                torch.set_num_threads(plan.threads)
            torch.backends.cudnn.benchmark = torch.cuda.is_available()
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.benchmark = benchmark
            logger.setLevel(level)


def keep_freed_memory(most: int = 2**30) -> bool:
    """Tell glibc's allocator to keep what a step has freed for the next one; whether it was told.

    By default it gives the free top of its heap back to the system as soon as that is large. Where a step ends so,
    which depends on the addresses of the day, the next one fetches its memory again page by page: three of eight runs
    with the CNN took 89 instead of 64 ms a step, with 20,000 page faults each. Now the top goes back from `most` bytes
    on, in this process, for good: only the command does so. Settings of the user's own (MALLOC_..., GLIBC_TUNABLES)
    stand.
    """
    own = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if own or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(mmap_threshold, 2**25) and libc.mallopt(trim_threshold, most))  # 32 MB is the largest
