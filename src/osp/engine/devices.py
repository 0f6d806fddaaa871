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

from osp import distributed
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


def check_several(device: str, processes: int) -> None:
    """Refuse what `processes` on this machine cannot share."""
    if device.startswith("cuda:") or device == "mps":
        raise UserError(f"device: {device} is one device; for {processes} processes use cuda, cpu or auto.")
    count = torch.cuda.device_count() if device != "cpu" else 0
    if 0 < count < processes:
        raise UserError(
            f"device: {processes} processes were started here, but this machine has {count} CUDA device"
            f"{'s' if count > 1 else ''}. Start {count}, or use --set device=cpu."
        )


def processes_here() -> int:
    """How many processes of this run are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", distributed.world()))


def open_fabric(plan: Plan) -> Fabric:
    """Fabric on one device: CUDA where there is one, then MPS, then the CPU; or the one the plan names.

    Where several processes have joined, on as many devices: each process on its own.
    """
    from lightning_fabric import Fabric

    check_device(plan.device, plan.precision)
    if distributed.world() > 1:
        return _open_several(plan)
    accelerator, _, number = plan.device.partition(":")
    return Fabric(accelerator=accelerator, devices=[int(number)] if number else 1, precision=plan.precision)


def _open_several(plan: Plan) -> Fabric:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    here = processes_here()
    check_several(plan.device, here)
    cuda = torch.cuda.is_available() and plan.device != "cpu"
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=here,
        num_nodes=distributed.world() // here,
        strategy=DDPStrategy(process_group_backend=distributed.backend(), timeout=distributed.time_limit()),
        plugins=TorchElasticEnvironment(),
        precision=plan.precision,
    )
    fabric.launch()  # starts nothing, as the processes are there: it gives each its device
    return fabric


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
            if not distributed.first():
                warnings.simplefilter("ignore")  # the first process says it
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
