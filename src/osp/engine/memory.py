"""What one step takes, worked out before the first one: a number too large must be a sentence, not a killed process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from osp.errors import UserError
from osp.machine import in_gigabytes, memory
from osp.methods.base import Method, StreamSpec
from osp.nets.registry import Shape


def check_step(method: Method, stages: Iterable[Mapping[str, StreamSpec]], device: torch.device) -> None:
    """Refuse a step that cannot fit: the images of its streams, and what the encoder keeps of them for its gradient.

    Counted is the least that a method can do with: of several views of a stream one may need no gradient.
    """
    have = memory() if device.type == "cpu" else _of_device(device)
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


def _of_device(device: torch.device) -> int | None:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
