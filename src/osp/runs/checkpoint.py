"""Checkpoints: one safetensors file each, with JSON and a checksum in its header; nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from osp.errors import UserError
from osp.files import open_plain, write_bytes

FORMAT = "osp checkpoint 2"


def save_checkpoint(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any], earlier: Path | None = None) -> None:
    """Tensors and a JSON header, atomically; what was there before is kept as `earlier` where that is named."""
    # Copies, because the format refuses tensors that share memory: tied weights are written twice.
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    text = json.dumps(meta)
    content = save(plain, metadata={"format": FORMAT, "meta": text, "checksum": checksum(plain, text)})
    write_bytes(path, _in_order(content), earlier)


def _in_order(content: bytes) -> bytes:
    """The same safetensors file with its JSON in a fixed order, which the package leaves to chance."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    first = {"__metadata__": dict(sorted(header.pop("__metadata__").items()))}
    text = json.dumps({**first, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(content)[start:]])


def checksum(tensors: dict[str, Tensor], meta: str) -> str:
    """Over names, shapes, types and bytes of all tensors, and the JSON."""
    digest = hashlib.blake2b(meta.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def load_checkpoint(path: Path, links: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote, or a UserError that says what is wrong with the file; `links` are followed where
    the user has named the file."""
    try:
        open_plain(path, links=links).close()  # safe_open would wait for a pipe
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            if not header.get("format", "").startswith("osp checkpoint"):
                raise UserError(f"{path} is not a checkpoint of osp.")
            if header["format"] != FORMAT:
                raise UserError(f"{path} was made with another version of osp.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if checksum(tensors, header["meta"]) != header.get("checksum"):
            raise UserError(f"The checkpoint {path} is damaged: its checksum is wrong.")
        meta = json.loads(header["meta"])
        if not isinstance(meta, dict):
            raise ValueError("its header is no list of fields")
    except FileNotFoundError:
        raise UserError(f"There is no checkpoint {path}.") from None
    except (SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"The checkpoint {path} is damaged: {why}") from None
    return tensors, meta


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}/"): value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


@torch.no_grad()
def load_state(module: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Copy saved tensors into a module; buffers take the saved size, parameters must have it."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    expected = set(module.state_dict())
    if missing := sorted(expected - set(tensors)):
        raise UserError(f"{source} lacks {missing[0]!r}: it was made with another network, method or version.")
    for name, value in tensors.items():
        if name in parameters:
            target = parameters[name]
            if target.shape != value.shape:
                raise UserError(f"{source}: {name!r} is {tuple(value.shape)}, the network wants {tuple(target.shape)}.")
            if target.is_floating_point() != value.is_floating_point():
                raise UserError(f"{source}: {name!r} holds {value.dtype}, the network wants {target.dtype}.")
            target.copy_(value)
        elif name in buffers:
            if buffers[name].shape == value.shape:
                buffers[name].copy_(value)
            else:
                owner, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(owner), leaf, value.to(buffers[name].device))
        else:
            raise UserError(f"{source} holds {name!r}, which this network and method do not have.")
