"""A second set of weights: the best of several rounds, a mean over the end of a stage, a frozen teacher's."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WeightStore(nn.Module):
    """Remembers the state of a module (parameters and buffers) as buffers of its own, so that checkpoints carry it.

    `keep` takes the module's present state, `average` makes the store the mean of all states averaged since it was last
    cleared, `restore` puts the stored state back into the module. `filled` counts what went in.
    """

    filled: Tensor

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = list(module.state_dict())
        for number, tensor in enumerate(module.state_dict().values()):
            self.register_buffer(f"tensor_{number}", tensor.detach().clone())
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def keep(self, module: nn.Module) -> None:
        """Store the module as it is."""
        for stored, tensor in self._pairs(module):
            stored.copy_(tensor)
        self.filled.fill_(1)

    @torch.no_grad()
    def average(self, module: nn.Module) -> None:
        """Take the module into the mean: m <- m + (w - m) / n. Whole numbers (batch-norm counters) are the newest."""
        self.filled += 1
        for stored, tensor in self._pairs(module):
            if stored.is_floating_point():
                stored.lerp_(tensor, (1 / self.filled).to(stored.dtype))
            else:
                stored.copy_(tensor)

    def clear(self) -> None:
        """The next `average` starts a new mean."""
        self.filled.zero_()

    @torch.no_grad()
    def restore(self, module: nn.Module) -> None:
        """Give the module what is stored."""
        for stored, tensor in self._pairs(module):
            tensor.copy_(stored)

    def _pairs(self, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
        state = module.state_dict()
        return [(self.get_buffer(f"tensor_{number}"), state[name]) for number, name in enumerate(self._names)]
