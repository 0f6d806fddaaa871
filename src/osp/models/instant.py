"""The instant answer: a classifier and an OOD score on frozen features. `osp.photos.instant` fits it.

Features are centered by a mean m and scaled to length one: z = (f - m) / |f - m|.

- *Classes*: a linear head on z, or on the mean of z and of its neighbors in the pile where that was found to help,
  perhaps through an adapter that training has learned. The logits are divided by a temperature.
- *OOD score* (larger = more OOD): what clusters of the pile and chains of neighbors in it say (`osp.parts.pool_score`).
  Without a pile, or with a small one, s(z) = 1 - max_c (cos(z, mean of class c) + mean of the five largest cos(z, image
  of class c)) / 2. (Fits of version 0.1 average that over z and its neighbors in the pile.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from osp.evaluate.belonging import Belonging, fit_belonging, spoken
from osp.evaluate.estimates import Estimate
from osp.evaluate.thresholds import ACCEPT, known_share, threshold
from osp.parts.pool_score import PoolAsked
from osp.scores.pool import BothScore

NEAREST_LABELS = 5
_CHUNK = 512
"""Rows at once: with their neighbors' features some 50 MB."""


class FeatureRows(Protocol):
    """Rows of features: an array, or what reads them from the disk when asked."""

    def __len__(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, chosen: Any, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Adapter:
    """z + up relu(down z + bias): what training has learned to add to what the head is applied to."""

    down: np.ndarray
    bias: np.ndarray
    up: np.ndarray


@dataclass(frozen=True)
class Instant:
    """What was fitted. All arrays are float32; rows of features have length one."""

    class_names: tuple[str, ...]
    mean: np.ndarray
    weight: np.ndarray
    """classes × features: the linear head on centered features of length one."""
    bias: np.ndarray
    strength: float
    """Inverse regularization of the head."""
    temperature: float
    labeled: np.ndarray
    labels: np.ndarray
    references: np.ndarray
    """Rows of the pile in which neighbors are looked for."""
    reference_scores: np.ndarray
    """Of the references, where neighbors have a part in OOD scores."""
    neighbors: int
    smoothing: float
    """Weight of the neighbors' mean in what the head is applied to: 0 or 1/2."""
    id_scores: np.ndarray
    """OOD scores of labeled images, each seen as if it had no label; empty where nothing can be held out."""
    id_weights: np.ndarray
    pile_scores: np.ndarray
    """OOD scores of the references."""
    estimate: Estimate | None
    """None where every class has one image."""
    held_out: np.ndarray | None = None
    """Probabilities of the labeled images, n×K, each from the others; zero where an image is the only one of its
    class, None where all are."""
    adapter: Adapter | None = None
    """Where training has gone on from here (`osp.photos.learning`)."""
    head_mean: np.ndarray | None = None
    """What the head's inputs are centered by where that is not `mean`: where labels alone separate the classes better
    than labels and pile do."""
    asked: PoolAsked | None = None
    """What gives the OOD scores, from raw features; None without a pile that can be asked."""
    groups: np.ndarray | None = None
    """The number of the group of unknown photos at each free center of `asked`, 0 for none (`osp.photos.groups`)."""
    cut: float | None = None
    """Where a person has said what is unknown: the OOD score at which as much speaks for a class as against all."""

    def with_classes_of(self, alone: Instant) -> Instant:
        """Classes by an answer without a pile, OOD scores as here."""
        return replace(
            self,
            weight=alone.weight,
            bias=alone.bias,
            strength=alone.strength,
            temperature=alone.temperature,
            smoothing=0.0,
            estimate=alone.estimate,
            held_out=alone.held_out,
            adapter=None,
            head_mean=alone.mean,
        )

    @cached_property
    def net(self) -> InstantNet:
        """What answers, on the CPU."""
        return InstantNet(self).eval()

    @cached_property
    def belonging(self) -> Belonging | None:
        """Which photos of the pile belong, by their OOD scores; None where nothing was held out, or without a pile."""
        found = fit_belonging(self.pile_scores, self.id_scores, self.id_weights)
        return found if found is None or self.cut is None else spoken(found, self.pile_scores)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "net"}

    def center(self, features: np.ndarray) -> np.ndarray:
        """Raw features to centered features of length one."""
        return centered(tensor(features), tensor(self.mean)).numpy()

    def answer(self, features: np.ndarray | FeatureRows) -> tuple[np.ndarray, np.ndarray]:
        """Calibrated class probabilities and OOD scores of raw features, which are read once."""
        found = [(self.net.logits(chunk), self.net.scores(chunk)) for chunk in _chunks(features)]
        logits, scores = (torch.cat(part) for part in zip(*found, strict=True))
        return self.net.probabilities(logits).numpy(), scores.numpy()

    def logits(self, features: np.ndarray | FeatureRows) -> np.ndarray:
        """Logits of raw features, before the temperature."""
        return _by_chunk(self.net.logits, features).numpy()

    def predict_proba(self, features: np.ndarray | FeatureRows) -> np.ndarray:
        """Calibrated class probabilities of raw features."""
        return self.net.probabilities(_by_chunk(self.net.logits, features)).numpy()

    def ood_score(self, features: np.ndarray | FeatureRows) -> np.ndarray:
        """OOD scores of raw features; larger = more OOD."""
        return _by_chunk(self.net.scores, features).numpy()

    def kinds(self, features: np.ndarray | FeatureRows) -> tuple[np.ndarray, np.ndarray]:
        """The free center nearest each row of raw features, -1 where a class is nearer, and how near it is."""
        if self.asked is None:
            return np.full(len(features), -1), np.zeros(len(features))
        found = [self.asked.clusters.kinds(chunk) for chunk in _chunks(features)]
        kinds, cosines = (torch.cat(part).numpy() for part in zip(*found, strict=True))
        return kinds, cosines

    def group_of(self, features: np.ndarray) -> np.ndarray:
        """The number of the group that each row of raw features would belong to if it is unknown; 0 for none."""
        if self.groups is None:
            return np.zeros(len(features), np.int64)
        found: np.ndarray = np.append(self.groups, 0)[self.kinds(features)[0]]
        return found

    def inputs(self, features: np.ndarray | FeatureRows) -> np.ndarray:
        """What the head, or the adapter before it, is applied to, of raw features."""
        return _by_chunk(self.net.inputs, features).numpy()

    def threshold(self, accept: float = ACCEPT) -> float:
        """The OOD score up to which an image counts as one of the classes: accepts this share of the known ones.

        Where there is a cut it stands for the usual share; larger ones accept no less, smaller ones no more.
        """
        found = threshold(accept, self.id_scores, self.id_weights, self.pile_scores)
        if self.cut is None:
            return found
        return self.cut if accept == ACCEPT else max(found, self.cut) if accept > ACCEPT else min(found, self.cut)

    def share(self, pile_scores: np.ndarray) -> float:
        """At most so much of a pile belongs to one of the classes, by its OOD scores."""
        return known_share(pile_scores, self.id_scores, self.id_weights)


def _by_chunk(function: Callable[[Tensor], Tensor], features: np.ndarray | FeatureRows) -> Tensor:
    return torch.cat([function(chunk) for chunk in _chunks(features)])


def _chunks(features: np.ndarray | FeatureRows) -> Iterator[Tensor]:
    """At least one, for the shape of nothing."""
    for start in range(0, max(len(features), 1), _CHUNK):
        yield tensor(features[start : start + _CHUNK])


class InstantNet(nn.Module):
    """Raw features N×D to logits N×K (before the temperature) and OOD scores N: to ask, to export, for gradients."""

    middle: Tensor
    head_middle: Tensor
    weight: Tensor
    bias: Tensor
    labeled: Tensor
    lengths: Tensor
    references: Tensor
    reference_scores: Tensor
    down: Tensor
    shift: Tensor
    up: Tensor

    def __init__(self, instant: Instant) -> None:
        super().__init__()
        members, self.sizes = by_class(tensor(instant.labeled), instant.labels, len(instant.class_names))
        self.temperature, self.smoothing, self.neighbors = instant.temperature, instant.smoothing, instant.neighbors
        arrays: dict[str, np.ndarray | Tensor] = {
            "middle": instant.mean,
            "head_middle": instant.mean if instant.head_mean is None else instant.head_mean,
            "weight": instant.weight,
            "bias": instant.bias,
            "labeled": members,
            "lengths": lengths(members, self.sizes),
        }
        if instant.neighbors:  # an empty buffer cannot be saved in a torch program
            arrays |= {"references": instant.references, "reference_scores": instant.reference_scores}
        self.asked = None
        if instant.asked is not None:
            self.asked = BothScore(len(instant.mean), len(instant.class_names))
            self.asked.take(instant.asked)
        self.adapted, self.own_middle = instant.adapter is not None, instant.head_mean is not None
        if instant.adapter is not None:
            arrays |= {"down": instant.adapter.down, "shift": instant.adapter.bias, "up": instant.adapter.up}
        for name, array in arrays.items():
            self.register_buffer(name, array if isinstance(array, Tensor) else tensor(array))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits(features), self.scores(features)

    def logits(self, features: Tensor) -> Tensor:
        rows = self.inputs(features)
        if self.adapted:
            rows = rows + (rows @ self.down.T + self.shift).relu() @ self.up.T
        return rows @ self.weight.T + self.bias

    def inputs(self, features: Tensor) -> Tensor:
        """What the head, or the adapter before it, is applied to."""
        if self.own_middle:
            return centered(features, self.head_middle)
        rows = centered(features, self.middle)
        if not (self.neighbors and self.smoothing):
            return rows
        around = self.references[nearest(rows, self.references, self.neighbors)].mean(dim=1)
        return (1 - self.smoothing) * rows + self.smoothing * around

    def scores(self, features: Tensor) -> Tensor:
        """OOD scores."""
        if self.asked is not None:
            return self.asked.part.score(features)
        rows = centered(features, self.middle)
        own = distance(rows @ self.labeled.T, self.lengths, self.sizes)
        if not self.neighbors:
            return own
        near = self.reference_scores[nearest(rows, self.references, self.neighbors)]
        return (own + near.sum(dim=1)) / (1 + self.neighbors)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated."""
        return (logits / self.temperature).softmax(dim=1)


def tensor(array: np.ndarray) -> Tensor:
    """float32, sharing memory where it can."""
    return torch.from_numpy(np.require(array, np.float32, ["C", "W"]))


def centered(features: Tensor, middle: Tensor) -> Tensor:
    """(f - m) / |f - m|; zero where f is m."""
    rows = features - middle
    unit: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12)
    return unit


def products(rows: Tensor, others: Tensor) -> Iterator[Tensor]:
    """Of each row with all the others, worked out a few rows at a time."""
    for part in torch.split(rows, _CHUNK):
        yield from part @ others.T


def nearest(rows: Tensor, references: Tensor, count: int) -> Tensor:
    """Positions of the references with the largest cosine, n×count."""
    return (rows @ references.T).topk(count, dim=1).indices


def by_class(rows: Tensor, labels: np.ndarray, classes: int) -> tuple[Tensor, list[int]]:
    """Labeled rows ordered by class, and how many each class has."""
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    return rows[order], np.bincount(labels, minlength=classes).tolist()


def lengths(members: Tensor, sizes: list[int]) -> Tensor:
    """Of the sum of the rows of each class, which are ordered by class."""
    sums = torch.stack([part.sum(dim=0) for part in torch.split(members, sizes)])
    found: Tensor = torch.linalg.vector_norm(sums, dim=1).clamp(min=1e-12)
    return found


def similarity(cosines: Tensor, length: Tensor) -> Tensor:
    """(cosine with the mean of a class + mean of the largest cosines with its images) / 2, of the cosines with each."""
    largest = cosines.topk(min(NEAREST_LABELS, cosines.shape[1]), dim=1).values
    return (cosines.sum(dim=1) / length + largest.mean(dim=1)) / 2


def similarities(cosines: Tensor, length: Tensor, sizes: list[int]) -> Tensor:
    """To each class, from the cosines with labeled images ordered by class."""
    parts = torch.split(cosines, sizes, dim=1)
    return torch.stack([similarity(part, each) for part, each in zip(parts, length, strict=True)], dim=1)


def distance(cosines: Tensor, length: Tensor, sizes: list[int]) -> Tensor:
    """The OOD score before it is averaged over neighbors: one minus the similarity to the most similar class."""
    return 1 - similarities(cosines, length, sizes).amax(dim=1)
