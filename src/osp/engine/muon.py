"""Muon: filters turn by orthogonal steps; everything else learns by SGD. For short runs.

Of a convolution's momentum, laid out as a matrix of one row per filter, only the directions are kept: all singular
values become about one (a few steps of Newton and Schulz's iteration), so that rare directions are learned as fast as
common ones. The step is as long as the rate times the mean length of a filter, and the length of all filters together
stays what it was:

    M <- β M + ∇        U = orthogonal(∇ + β M)        V = W - η |W| U / √rows        W <- |W| V / |V|

Lengths mean nothing where a batch norm follows, and in place of decaying they stay. Classifiers, heads, batch norms and
biases take Nesterov's SGD with the same rate times `OTHERS`.

Reference: Jordan et al., Muon (2024); the constant lengths are those of cifar10-airbench, by the same author. Measured
here: docs/lab-notes.md, "What short runs need".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from osp.errors import UserError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the iteration a X + b X Xᵀ X + c (X Xᵀ)² X: chosen by its author to lift small singular values fast."""
ITERATIONS = 3
OTHERS = 2.0
"""Rate of everything that is no filter, as a multiple of the filters'."""


def orthogonal(matrix: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """The same singular vectors, singular values brought to between about 0.7 and 1.2 (the smallest less).

    >>> torch.linalg.svdvals(orthogonal(torch.tensor([[3.0, 0.0], [0.0, 0.3]]))).ge(0.3).tolist()
    [True, True]
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    found: Tensor = matrix.T if tall else matrix
    found = found / (found.norm() + 1e-7)
    for _ in range(iterations):
        square = found @ found.T
        found = a * found + (b * square + c * square @ square) @ found
    return found.T if tall else found


class Muon(torch.optim.Optimizer):
    """Groups with `filters=True` turn; the others are SGD with Nesterov's momentum and weight decay."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "filters": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise UserError("optimizer muon takes no closure.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._one(parameter, group)

    def _one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        momentum, gradient = group["momentum"], parameter.grad
        assert gradient is not None
        if not group["filters"] and group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
        direction = gradient.add(buffer, alpha=momentum)
        if group["filters"]:
            turn(parameter, direction, group["lr"])
        else:
            parameter.add_(direction, alpha=-group["lr"] * OTHERS)


def turn(filters: Tensor, direction: Tensor, rate: float) -> None:
    """Move the filters by `rate` of their mean length along the orthogonalised direction, in place, keeping |W|.

    Filters that begin at zero (the last ones of a residual branch, say) have no length to keep: they count as if they
    had unit length each until they have one.
    """
    length = filters.norm()
    length = torch.where(length > 0, length, filters.shape[0] ** 0.5)
    step = orthogonal(direction.flatten(1)).view_as(filters)
    filters.sub_(step * (rate * length / filters.shape[0] ** 0.5))
    filters.mul_(length / filters.norm().clamp_min(1e-12))
