"""Choosing the device and the arithmetic, through lightning-fabric."""

from __future__ import annotations

import logging
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
    if fabric.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    return fabric
