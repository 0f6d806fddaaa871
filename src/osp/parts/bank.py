"""The bank of recyclable OOD features: one first-in-first-out queue per class (Eq. 5 and 6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from osp.parts.draws import rand

UNKNOWN = 2**62
PUSHES_AHEAD = 15


class OODBank(nn.Module):
    """Class-wise queues B(c) of recyclable OOD features (Eq. 5), at most `capacity` per class, the newest kept.

    Features lie in one table that grows as it fills; a slot table (class × position) points into it. Pushing a batch
    and sampling for a batch of anchors are tensor operations without a loop over samples or classes; the device is
    asked for a number only when the table has to grow.

    `total_capacity` bounds all classes together; `dtype=torch.float16` halves the memory.
    """

    features: Tensor
    ids: Tensor
    slots: Tensor
    written: Tensor
    size: Tensor

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        capacity: int = 5000,
        total_capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.num_classes, self.feature_dim = num_classes, feature_dim
        self.capacity = capacity if total_capacity is None else min(capacity, total_capacity // num_classes)
        if self.capacity < 1:
            raise ValueError(f"a bank of {total_capacity} features has no room for {num_classes} classes")
        self.register_buffer("features", torch.zeros(0, feature_dim, dtype=dtype))
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("slots", torch.zeros(num_classes, 0, dtype=torch.int64))
        self.register_buffer("written", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("size", torch.zeros((), dtype=torch.int64))
        self._size_bound = self._class_bound = UNKNOWN  # upper bounds that the host knows without asking the device
        self.register_state_dict_pre_hook(_compact)  # type: ignore[no-untyped-call]

    @property
    def counts(self) -> Tensor:
        """How many features each class holds."""
        return self.written.clamp(max=self.capacity)

    @torch.no_grad()
    def push(self, features: Tensor, classes: Tensor, ids: Tensor | None = None, valid: Tensor | None = None) -> None:
        """Append features to their classes' queues in the order given; the oldest of a full queue fall out.

        `ids` are kept beside the features (-1 where not given). Rows with `valid` false are left out: a mask costs no
        question to the device, unlike selecting rows first.
        """
        n = len(features)
        if n == 0:
            return
        device = self.features.device
        features, classes = features.detach().to(device), classes.to(device)
        ids = torch.full((n,), -1, dtype=torch.int64, device=device) if ids is None else ids.to(device)
        valid = torch.ones(n, dtype=torch.bool, device=device) if valid is None else valid.to(device)
        self._reserve(n)

        # position of each row in its class's endless row of arrivals
        key = torch.where(valid, classes, self.num_classes)
        order = torch.argsort(key, stable=True)
        sorted_key = key[order]
        arrivals = torch.zeros(self.num_classes + 1, dtype=torch.int64, device=device)
        arrivals.scatter_add_(0, sorted_key, torch.ones_like(sorted_key))
        rank = torch.arange(n, device=device) - (arrivals.cumsum(0) - arrivals)[sorted_key]
        newest = rank >= arrivals[sorted_key] - self.capacity  # more arrivals than room: the last ones stay
        stored = (sorted_key < self.num_classes) & newest
        owner = torch.where(stored, sorted_key, 0)
        position = self.written[owner] + rank

        # a new row of the table where the queue still grows, otherwise the row of the feature that falls out
        slot = torch.where(stored, position % self.capacity, self.slots.shape[1] - 1)
        before = self.counts[owner]
        fresh = stored & (slot >= before)
        row = torch.where(fresh, self.size + fresh.cumsum(0) - 1, self.slots[owner, slot])
        row = torch.where(stored, row, len(self.features) - 1)  # the last row and last slot are scrap
        self.features[row] = features[order].to(self.features.dtype)
        self.ids[row] = ids[order]
        self.slots[owner, slot] = torch.where(stored, row, self.slots[owner, slot])
        self.written += arrivals[: self.num_classes]
        self.size += fresh.sum()

    @torch.no_grad()
    def sample(self, classes: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Eq. 6: a uniformly random o of B(c) for each anchor's class c, and whether there was one (else zeros)."""
        counts = self.counts[classes]
        found = counts > 0
        if self.slots.shape[1] == 0:
            return self._take(torch.zeros_like(classes), found), found
        pick = _uniform_integers(counts, generator)
        return self._take(torch.where(found, self.slots[classes, pick], 0), found), found

    @torch.no_grad()
    def sample_any(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n uniformly random features of the whole bank: the ablation without aliasing matching (Eq. 6)."""
        pick = _uniform_integers(self.size.expand(n), generator)
        found = (self.size > 0).expand(n)
        return self._take(torch.where(found, pick, 0), found), found

    @torch.no_grad()
    def contents(self) -> dict[str, Tensor]:
        """All features with their classes and ids, class by class in the order of slots, not of age."""
        place = torch.arange(self.slots.shape[1], device=self.slots.device)
        used = place[None] < self.counts[:, None]
        rows, classes = self.slots[used], used.nonzero()[:, 0]
        return {"features": self.features[rows], "classes": classes, "ids": self.ids[rows]}

    def _take(self, rows: Tensor, found: Tensor) -> Tensor:
        if len(self.features) == 0:
            return torch.zeros(len(rows), self.feature_dim, device=rows.device)
        return torch.where(found[:, None], self.features[rows].float(), 0.0)

    def _reserve(self, n: int) -> None:
        """Room for n more features (and a scrap row and slot), doubling; bounds avoid asking the device each time."""
        most = self.capacity * self.num_classes
        self._size_bound += n
        self._class_bound += n
        if not self._short(most):
            return
        self._size_bound, self._class_bound = int(self.size) + n, int(self.counts.max()) + n
        ahead = PUSHES_AHEAD * n  # most rows of a push may be invalid: the next question is so many pushes away
        if min(self._size_bound + ahead, most) >= len(self.features):
            rows = min(max(self._size_bound + ahead, 2 * len(self.features)), most) + 1
            self.features, self.ids = _grown(self.features, rows, 0), _grown(self.ids, rows, 0)
        if min(self._class_bound + ahead, self.capacity) >= self.slots.shape[1]:
            wide = min(max(self._class_bound + ahead, 2 * self.slots.shape[1]), self.capacity) + 1
            self.slots = _grown(self.slots, wide, 1)

    def _short(self, most: int) -> bool:
        rows = min(self._size_bound, most) >= len(self.features)
        return rows or min(self._class_bound, self.capacity) >= self.slots.shape[1]


def _grown(table: Tensor, length: int, axis: int) -> Tensor:
    shape = list(table.shape)
    shape[axis] = length
    larger = table.new_zeros(shape)
    larger.narrow(axis, 0, table.shape[axis]).copy_(table)
    return larger


def _uniform_integers(counts: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform in 0..count-1 for each count (0 where the count is 0), drawn on the generator's device, the CPU."""
    drawn = rand((len(counts),), generator, torch.float64).to(counts.device, non_blocking=True)
    return (drawn * counts).long().clamp(max=(counts - 1).clamp(min=0))


def _compact(bank: nn.Module, prefix: str, keep_vars: bool, *_: Any) -> None:
    """Before saving: give back the room that is not in use, so that a checkpoint holds no more than is needed."""
    assert isinstance(bank, OODBank)
    bank.features = bank.features[: int(bank.size)].clone()
    bank.ids = bank.ids[: int(bank.size)].clone()
    bank.slots = bank.slots[:, : int(bank.counts.max())].clone()
    bank._size_bound = bank._class_bound = UNKNOWN  # what is saved is also what is loaded into
