"""The instant answer as a torch module: for graphs that are exported, and for gradients.

The formulas are those of `osp.photos.instant`, which says what they mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osp.photos.instant import NEAREST_LABELS, Instant


class InstantNet(nn.Module):
    """Raw features N×D to logits N×K (before the temperature) and OOD scores N."""

    middle: Tensor
    head_middle: Tensor
    weight: Tensor
    bias: Tensor
    labeled: Tensor
    lengths: Tensor
    references: Tensor
    reference_scores: Tensor

    def __init__(self, instant: Instant) -> None:
        super().__init__()
        order = np.argsort(instant.labels, kind="stable")
        rows = instant.labeled[order]
        self.sizes: list[int] = np.bincount(instant.labels, minlength=len(instant.class_names)).tolist()
        sums = [part.sum(axis=0) for part in np.split(rows, np.cumsum(self.sizes)[:-1])]
        self.temperature, self.smoothing, self.neighbors = instant.temperature, instant.smoothing, instant.neighbors
        arrays = {
            "middle": instant.mean,
            "head_middle": instant.mean if instant.head_mean is None else instant.head_mean,
            "weight": instant.weight,
            "bias": instant.bias,
            "labeled": rows,
            "lengths": np.maximum(np.linalg.norm(np.stack(sums), axis=1), 1e-12),
            "references": instant.references,
            "reference_scores": instant.reference_scores,
        }
        self.adapted, self.own_middle = instant.adapter is not None, instant.head_mean is not None
        if instant.adapter is not None:
            arrays |= {"down": instant.adapter.down, "shift": instant.adapter.bias, "up": instant.adapter.up}
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array, np.float32)))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        rows: Any = _centered(features, self.middle)
        per_class = [
            (cosines.sum(dim=1) / length + cosines.topk(min(NEAREST_LABELS, size), dim=1).values.mean(dim=1)) / 2
            for cosines, length, size in zip(
                (rows @ self.labeled.T).split(self.sizes, dim=1), self.lengths, self.sizes, strict=True
            )
        ]
        scores = 1 - torch.stack(per_class, dim=1).amax(dim=1)
        if self.neighbors:
            near = (rows @ self.references.T).topk(self.neighbors, dim=1).indices
            scores = (scores + self.reference_scores[near].sum(dim=1)) / (1 + self.neighbors)
            if self.smoothing:
                rows = (1 - self.smoothing) * rows + self.smoothing * self.references[near].mean(dim=1)
        if self.own_middle:
            rows = _centered(features, self.head_middle)
        if self.adapted:
            rows = rows + (rows @ self.down.T + self.shift).relu() @ self.up.T
        return rows @ self.weight.T + self.bias, scores


def _centered(features: Tensor, middle: Tensor) -> Tensor:
    rows = features - middle
    unit: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12)
    return unit
