"""Choosing the device and the arithmetic, through lightning-fabric; and whether a step fits into its memory."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from osp import distributed
from osp.errors import UserError
from osp.machine import in_gigabytes, memory
from osp.methods.base import Method, StreamSpec
from osp.nets.registry import Shape
from osp.recipe import Plan

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def check_device(device: str, precision: str) -> None:
    """Refuse a device that this machine lacks."""
    cuda = torch.cuda.is_available()
    if device.startswith("cuda") and not cuda:
        raise UserError("device: this machine has no CUDA device. Use --set device=cpu, or auto.")
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"device: {device} asked for, but this machine's CUDA devices are 0 to {count - 1}.")
    if precision == "16-mixed" and not (cuda and (device == "auto" or device.startswith("cuda"))):
        raise UserError("precision: 16-mixed needs a CUDA device. Use --set precision=bf16-mixed, or 32-true.")


def check_several(device: str, processes: int) -> None:
    """Refuse what `processes` on this machine cannot share."""
    if device.startswith("cuda:"):
        raise UserError(f"device: {device} is one device; for {processes} processes use cuda, cpu or auto.")
    count = torch.cuda.device_count() if device != "cpu" else 0
    if 0 < count < processes:
        raise UserError(
            f"device: {processes} processes were started here, but this machine has {count} CUDA device"
            f"{'s' if count > 1 else ''}. Start {count}, or use --set device=cpu."
        )


def open_fabric(plan: Plan) -> Fabric:
    """Fabric on one device: CUDA where there is one, else the CPU; or the one the plan names.

    Where several processes have joined, on as many devices: each process on its own.
    """
    from lightning_fabric import Fabric

    check_device(plan.device, plan.precision)
    if distributed.world() > 1:
        return _open_several(plan)
    accelerator, _, number = plan.device.partition(":")
    if accelerator == "auto":  # Fabric's own would take Apple's MPS, which lacks the float64 of OOD scores
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    return Fabric(accelerator=accelerator, devices=[int(number)] if number else 1, precision=plan.precision)


def _open_several(plan: Plan) -> Fabric:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    here = int(os.environ.get("LOCAL_WORLD_SIZE", distributed.world()))
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


def check_step(method: Method, stages: Iterable[Mapping[str, StreamSpec]], device: torch.device) -> None:
    """Refuse a step that cannot fit: the images of its streams, and what the encoder keeps of them for its gradient.

    Counted is the least that a method can do with: of several views of a stream one may need no gradient.
    """
    have = memory() if device.type == "cpu" else None
    if device.type == "cuda":
        have = torch.cuda.get_device_properties(device).total_memory
    kept = bytes_per_image(method.net.encoder, method.task.shape)
    if have is None or kept is None:
        return
    pixels = 4 * torch.Size(method.task.shape).numel()
    for streams in stages:
        least, parts = 0, []
        for name, each in streams.items():
            views = len(each.views)
            least += each.batch * (pixels * views + kept * max(1, views - 1))
            parts.append(f"{each.batch:,} {name} images in {views} view{'s' * (views > 1)}")
        if least > have:
            raise UserError(
                f"One step ({', '.join(parts)}, each of {'x'.join(map(str, method.task.shape))}) would take at least "
                f"{in_gigabytes(least)}, and there are {in_gigabytes(have)}. Take a smaller batch, mu, image_size or "
                "network."
            )


def bytes_per_image(encoder: nn.Module, shape: Shape) -> int | None:
    """What the encoder keeps of one image until its gradient is computed; None for a module that cannot be asked.

    A pass of two images that exist in shape alone (device `meta`): nothing is computed and no memory taken.
    """
    kept: list[int] = []
    weights = {name: torch.empty_like(each, device="meta") for name, each in encoder.named_parameters()}
    buffers = {name: torch.empty_like(each, device="meta") for name, each in encoder.named_buffers()}
    own = {id(each) for each in weights.values()}

    def pack(tensor: Tensor) -> Tensor:
        if id(tensor) not in own:
            kept.append(tensor.nbytes)
        return tensor

    for each in weights.values():
        each.requires_grad_()
    modes = [(each, each.training) for each in encoder.modules()]
    try:
        encoder.train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            torch.func.functional_call(encoder, {**weights, **buffers}, torch.empty(2, *shape, device="meta"))
    except Exception:  # a module of the user's own may ask for numbers, which shapes alone do not have
        return None
    finally:
        for module, training in modes:
            module.training = training
    return sum(kept) // 2


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
    which depends on the addresses of the day, the next one fetches its memory again page by page, and takes a third
    longer. Now the top goes back from `most` bytes on, in this process, for good: only the command does so. Settings of
    the user's own (MALLOC_..., GLIBC_TUNABLES) stand.
    """
    own = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if own or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(mmap_threshold, 2**25) and libc.mallopt(trim_threshold, most))  # 32 MB is the largest
