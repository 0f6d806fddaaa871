"""Optimizers, averaged weights, and their state as plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from osp.engine.muon import Muon
from osp.methods.base import ExtraOptimizer, Method, Stage

FUSED_DEVICES = {"cpu", "cuda"}


def build_optimizer(settings: Stage | ExtraOptimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a stage or of a method's extra parameters.

    Weight decay leaves one-dimensional parameters (biases, batch norms) alone unless the stage says `decay_all`.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    decay_all = getattr(settings, "decay_all", True)
    decayed = [parameter for parameter in trainable if decay_all or parameter.ndim > 1]
    others = [parameter for parameter in trainable if not decay_all and parameter.ndim <= 1]
    filters = [parameter for parameter in trainable if parameter.ndim == 4 and settings.optimizer == "muon"]
    if filters:
        decayed = [parameter for parameter in decayed if parameter.ndim != 4]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "muon":
        turned = [{"params": filters, "filters": True}] if filters else []
        return Muon([*turned, *groups], lr=settings.lr, momentum=settings.momentum)
    fused = all(p.device.type in FUSED_DEVICES and p.is_floating_point() for p in trainable)
    if settings.optimizer == "sgd":
        nesterov = getattr(settings, "nesterov", False) and settings.momentum > 0
        sgd = torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=nesterov, fused=fused)
        if settings.momentum > 0:  # the fused step cannot begin with some parameters later than with others
            sgd.state.update({parameter: {"momentum_buffer": torch.zeros_like(parameter)} for parameter in trainable})
        return sgd
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.lr, fused=fused)


def clip_gradients(optimizer: torch.optim.Optimizer, most: float, scaler: torch.amp.GradScaler | None = None) -> None:
    """Make all gradients together no longer than `most`; those that 16-mixed has scaled up are scaled back first.

    Fabric's own refuses fused optimizers then, though their step looks whether that has been done.
    """
    if scaler is not None:
        scaler.unscale_(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, most)


def main_parameters(method: Method) -> list[nn.Parameter]:
    """All parameters of the method that have no optimizer of their own."""
    extra = {id(parameter) for group in method.extra_optimizers().values() for parameter in group.parameters}
    return [parameter for parameter in method.parameters() if id(parameter) not in extra]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer by `number of the parameter/name`."""
    return {
        f"{number}/{name}": torch.as_tensor(value)
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if value is not None
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, keeping each parameter's memory layout."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, value in tensors.items():
        number, name = key.split("/")
        parameter = parameters[int(number)]
        if value.shape == parameter.shape and name != "step":
            value = torch.empty_like(parameter).copy_(value)
        optimizer.state[parameter][name] = value


class AveragedWeights:
    """Exponential moving average of the parameters; buffers are the trained model's own.

    The decay rises from 0.1 to its value as (1 + t) / (10 + t), so that in a short run the average forgets the random
    start instead of reporting it. Without a decay nothing is averaged, and the model is always as it was trained.
    """

    def __init__(self, method: nn.Module, decay: float | None) -> None:
        self.decay = decay
        self.updates = 0
        named = {} if decay is None else {name: each for name, each in method.named_parameters() if each.requires_grad}
        self._names, self._live = list(named), list(named.values())
        self.average = [parameter.detach().clone() for parameter in self._live]

    @torch.no_grad()
    def update(self) -> None:
        if self.decay is None:
            return
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.average, [parameter.detach() for parameter in self._live], 1 - decay)
        self.updates += 1

    @torch.no_grad()
    def restart(self, prefix: str = "") -> None:
        """Forget everything (of the parameters whose names begin so): the average is the model as it is now."""
        if not prefix:
            self.updates = 0
        for name, average, parameter in zip(self._names, self.average, self._live, strict=True):
            if name.startswith(prefix):
                average.copy_(parameter)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self.average, self._live, strict=True):
            parameter.data, average.data = average.data, parameter.data
