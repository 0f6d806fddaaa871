"""Checkpoints: one safetensors file each, with JSON in its header; nothing is ever unpickled.

A file is written beside its final name, flushed to the disk and renamed, so that whatever happens the last good one
stays.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from osp.errors import UserError

FORMAT = "osp checkpoint 1"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: an error leaves what was there before."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        kept = f" The earlier {path.name} is untouched." if path.exists() else ""
        advice = " Free some space, then go on with --resume." if full else ""
        raise UserError(f"Cannot write {path}: {error.strerror or error}.{kept}{advice}") from error


def save_checkpoint(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Tensors and a JSON header, atomically."""
    # Copies, because the format refuses tensors that share memory: tied weights are written twice.
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    header = {"format": FORMAT, "meta": json.dumps(meta)}
    write_bytes(path, save(plain, metadata=header))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote, or a UserError that says what is wrong with the file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if header.get("format") != FORMAT:
            raise UserError(f"{path} is not a checkpoint of osp.")
        meta = json.loads(header["meta"])
    except FileNotFoundError:
        raise UserError(f"There is no checkpoint {path}.") from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"The checkpoint {path} is damaged: {error}") from None
    return tensors, meta


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}/"): value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


@torch.no_grad()
def load_state(module: nn.Module, tensors: dict[str, Tensor], source: Path, may_lack: tuple[str, ...] = ()) -> None:
    """Copy saved tensors into a module; buffers take the saved size, parameters must have it.

    Names that begin with one of `may_lack` may be missing: a file of a trained model leaves training state out.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    expected = set(module.state_dict())
    if missing := sorted(name for name in expected - set(tensors) if not name.startswith(may_lack)):
        raise UserError(f"{source} lacks {missing[0]!r}: it was made with another network, method or version.")
    for name, value in tensors.items():
        if name in parameters:
            target = parameters[name]
            if target.shape != value.shape:
                raise UserError(f"{source}: {name!r} is {tuple(value.shape)}, the network wants {tuple(target.shape)}.")
            target.copy_(value)
        elif name in buffers:
            if buffers[name].shape == value.shape:
                buffers[name].copy_(value)
            else:
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, value.to(buffers[name].device))
        else:
            raise UserError(f"{source} holds {name!r}, which this network and method do not have.")
