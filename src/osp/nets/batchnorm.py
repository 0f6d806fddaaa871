"""Batch norms that see the global batch where it is spread over processes.

On GPUs this is torch's own `SyncBatchNorm`. That one refuses the CPU, cannot be differentiated twice (DS3L does so) and
knows nothing of grouped passes; there the same is done by a sum over processes through which gradients flow.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.distributed import summed_with_gradient, world

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class SpreadBatchNorm(nn.SyncBatchNorm):
    """y = γ (x - μ) / √(σ² + ε) + β per channel, μ and σ² over the rows of all processes.

    Each process gives its count n_r, n_r μ_r and n_r (σ_r² + μ_r²), in double precision so that nothing cancels:

        n = Σ n_r,  μ = Σ n_r μ_r / n,  σ² = Σ n_r (σ_r² + μ_r²) / n - μ²

    The processes need not hold equally many rows, and one may hold none. With `slots` above 1 they work on that many
    passes at once, each on pass `slot` (see `Network.encode`): the sums are taken for each pass by itself, and all
    processes bring their running statistics up to date with all of the passes, in order.
    """

    slot, slots = 0, 1
    twice = False
    """Whether it must be differentiable twice."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return nn.BatchNorm2d.forward(self, inputs)
        if inputs.is_cuda and self.slots == 1 and not self.twice:
            found: Tensor = super().forward(inputs)
            return found
        values = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        sums = summed_with_gradient(self._own_sums(values))
        self._follow(sums.detach())
        mean, variance = (each.to(values.dtype) for each in _moments(sums[self.slot]))
        scale = torch.rsqrt(variance + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        return torch.addcmul(shift.view(shape), values, scale.view(shape)).to(inputs.dtype)

    def _own_sums(self, values: Tensor) -> Tensor:
        """n_r, n_r μ_r and n_r (σ_r² + μ_r²) in the row of this process's pass: slots×(1 + 2C), zeros elsewhere."""
        axes = [0, *range(2, values.ndim)]
        count = values.numel() // values.shape[1]
        if count:
            variance, mean = (each.double() for each in torch.var_mean(values, axes, correction=0))
        else:
            variance = mean = values.sum(axes).double()  # zeros, with a graph like that of the other processes
        own = torch.cat([mean.new_full((1,), count), count * mean, count * (variance + mean.square())])
        return nn.functional.pad(own[None], (0, 0, self.slot, self.slots - 1 - self.slot))

    @torch.no_grad()
    def _follow(self, sums: Tensor) -> None:
        """Running statistics, with the unbiased variance as torch has it."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        for each in sums:
            mean, variance = _moments(each)
            self.num_batches_tracked.add_(1)
            weight = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
            unbiased = variance * each[0] / (each[0] - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


def _moments(sums: Tensor) -> tuple[Tensor, Tensor]:
    """μ and σ² from a row of sums."""
    mean, square = (sums[1:] / sums[0]).chunk(2)
    return mean, (square - mean.square()).clamp(min=0)


def spread(module: nn.Module, twice: bool = False) -> None:
    """Put a norm over all processes in the place of every batch norm inside; parameters and buffers are the same ones.

    `twice` for a method that differentiates through a gradient.
    """
    done: dict[int, SpreadBatchNorm] = {}
    for owner in list(module.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, BATCH_NORMS) and not isinstance(layer, SpreadBatchNorm):
                if id(layer) not in done:
                    settings = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
                    norm = done[id(layer)] = SpreadBatchNorm(*settings, device="meta")
                    norm._parameters, norm._buffers = layer._parameters, layer._buffers
                    norm.training, norm.twice = layer.training, twice
                setattr(owner, name, done[id(layer)])


def set_slot(module: nn.Module, slot: int = 0, slots: int = 1) -> None:
    """Which of the passes that are under way at once this process works on."""
    for layer in module.modules():
        if isinstance(layer, SpreadBatchNorm):
            layer.slot, layer.slots = slot, slots
