"""What DAC remembers: the last embeddings with their soft labels, and a running average for each image of the pool."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osp.distributed import gathered


class EmbeddingMemory(nn.Module):
    """The newest `capacity` embeddings m_r (rows of length one) and their targets t_r; empty at first.

        q(v) = Σ_r s_r t_r with s = softmax_r(v · m_r / T)

    Nothing in it has a gradient; q has one into v.
    """

    embeddings: Tensor
    targets: Tensor

    def __init__(self, width: int, num_targets: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.register_buffer("embeddings", torch.zeros(0, width))
        self.register_buffer("targets", torch.zeros(0, num_targets))

    def __len__(self) -> int:
        return len(self.embeddings)

    @torch.no_grad()
    def push(self, embeddings: Tensor, targets: Tensor) -> None:
        """Add those of the global batch; the oldest go where there is no room."""
        self.embeddings = torch.cat([gathered(embeddings), self.embeddings])[: self.capacity]
        self.targets = torch.cat([gathered(targets), self.targets])[: self.capacity]

    def predict(self, embeddings: Tensor, temperature: float) -> Tensor:
        """q, N×(length of a target); rows sum to one as the targets do."""
        similarity = (embeddings @ self.embeddings.T / temperature).softmax(dim=1)
        return similarity @ self.targets


class PoolAverage(nn.Module):
    """For each image of the pool its last value a_i and the running average s_i of its values, scaled over the pool:

        j_i = (a_i - min a) / (max a - min a)       minimum and maximum over the last values of all images seen so far
        s_i <- (m s_i + (1 - m) j_i)                from the first j_i on: A_i / W_i with A_i <- m A_i + (1 - m) j_i
                                                    and W_i <- m W_i + (1 - m), both from 0

    Values of an image that is several times in a batch are averaged first. An image not seen yet has s_i = 0.
    """

    last: Tensor
    total: Tensor
    weight: Tensor

    def __init__(self, num_images: int, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("last", torch.zeros(num_images))
        self.register_buffer("total", torch.zeros(num_images))
        self.register_buffer("weight", torch.zeros(num_images))

    @property
    def seen(self) -> Tensor:
        return self.weight > 0

    def values(self) -> Tensor:
        """s of all images."""
        return torch.where(self.seen, self.total / self.weight.clamp(min=torch.finfo(torch.float32).tiny), 0.0)

    @torch.no_grad()
    def update(self, rows: Tensor, values: Tensor) -> None:
        """With those of the global batch."""
        rows, values = gathered(rows), gathered(values.float())
        count = torch.zeros_like(self.last).index_add_(0, rows, torch.ones_like(values))
        value = torch.zeros_like(self.last).index_add_(0, rows, values) / count.clamp(min=1)
        new = count > 0
        self.last = torch.where(new, value, self.last)
        known = new | self.seen
        low = torch.where(known, self.last, torch.inf).min()
        high = torch.where(known, self.last, -torch.inf).max()
        scaled = (self.last - low) / (high - low).clamp(min=1e-8)
        decay = self.decay
        self.total = torch.where(new, decay * self.total + (1 - decay) * scaled, self.total)
        self.weight = torch.where(new, decay * self.weight + (1 - decay), self.weight)
