"""Means of named numbers that stay on the device until a line of the log is due."""

from __future__ import annotations

import torch
from torch import Tensor

from osp.distributed import summed, world


class Tally:
    """Running sums of named numbers on the device, read only when a line is due."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            if name in self.sums:
                self.sums[name] += value
            else:
                self.sums[name] = value.to(torch.float64 if value.device.type == "cpu" else torch.float32, copy=True)
            self.counts[name] = self.counts.get(name, 0) + 1

    def share(self) -> None:
        """Make the sums those of the global batch: the mean over the processes, everywhere the same."""
        if world() > 1 and self.sums:
            total = summed(torch.stack(list(self.sums.values()))) / world()
            self.sums = dict(zip(self.sums, total.unbind(), strict=True))

    def means(self) -> dict[str, float]:
        """The means since the last call."""
        result = {name: (total / self.counts[name]).item() for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return result

    def restore(self, sums: dict[str, Tensor], counts: dict[str, int]) -> None:
        self.sums, self.counts = {name: sums[name] for name in counts}, dict(counts)  # in the order of the counts
