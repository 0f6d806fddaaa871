"""A queue of the last embeddings with their soft labels, and what those near an embedding say about it."""

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
