"""What to ask a person about a pile, and what the answers so far say of all its photos: in well under a second.

`lay_out` looks at the photos alone, once: directions, neighbors, groups. `guess` is a pure function of that and of the
labels, so that undoing an answer gives back exactly what was there before it. Two things speak for a class or against
all of them: what labels say along chains of neighbors, and, with little weight, which clusters claim a photo
(`osp.parts.clusters`).

    F_i <- 0.9 · mean of F over the k nearest photos;  F_i = e_y for labeled ones      columns: K classes, none of them
    v_ic = F_ic + w (1 - u_i) r_ic for a class, v_i,none = F_i,none + w u_i            u_i: share of the free centers
    s_i = mean of v_none / (v_none + max_c v_c) over the photo and its k - 1 nearest   unknown above 1/2

The run that is written in the end decides by the same s: `ask_person` makes it the OOD score of a fit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osp.evaluate.belonging import EVEN
from osp.parts.clusters import SHARPNESS, STARTS, Clusters, find_centers, free_centers, half_whitened
from osp.parts.neighbors import Neighbors, embed
from osp.parts.pool_score import USUAL, PoolAsked

OPEN, NONE = -2, -1
"""In place of a class: nothing is said yet; it was said to be none of the classes."""
NEAREST = 10
STEPS, KEEP = 15, 0.9
"""How far labels travel along neighbors, and what is left after each step."""
CLUSTERS_SAY = 0.05
"""w: what clusters count beside a label that has arrived undiminished."""
ROUNDS = 8
PER_GROUP, MOST_GROUPS, LEAST_GROUP = 30, 60, 5
SHOWN = 6
"""Photos of one question. More would be labeled by one answer, but each group costs more clicks and says no more."""
FITTED = 4096
"""Photos from which directions and clusters are taken, at most."""
SILENT = 1e6
"""Spread of a score that has no say."""
_CHUNK = 1024


@dataclass(frozen=True)
class Layout:
    """The photos as points, whatever they show."""

    basis: Tensor
    """D×d: the directions in which photos are compared, as `osp.parts.neighbors.embed` takes them."""
    rows: Tensor
    """n×d, of length one."""
    near: Tensor
    """n×k: the nearest others."""
    lonely: Tensor
    """n: one minus the cosine with the last of them but one."""
    groups: list[np.ndarray]
    """Rows of what looks alike, the most typical first; the largest group first."""

    @property
    def usual(self) -> tuple[float, float]:
        """What 99 % of `lonely` do not exceed, and the standard deviation: what is farther from everything is new."""
        place = int(USUAL * (len(self.lonely) - 1))
        return float(self.lonely.sort().values[place]), max(float(self.lonely.std(correction=0)), 1e-3)


@dataclass(frozen=True)
class Guess:
    """What the labels so far say of every photo; empty columns where no class has a label."""

    classes: np.ndarray
    """n: the most likely class; -1 without classes."""
    unknown: np.ndarray
    """n: how much speaks for none of the classes, 0 to 1, and more of a photo unlike all others."""
    inside: np.ndarray
    """n: looks like one of the classes."""
    sure: np.ndarray
    """n, 0 to 1: the guess's lead over what comes second, in or out."""
    against: np.ndarray
    """n, 0 to 1: what speaks for none of the classes, before it is averaged over neighbors."""


@dataclass(frozen=True)
class Question:
    """Photos about which one thing is asked."""

    rows: np.ndarray
    guess: int
    """A class, or -1: none of the classes, or no idea."""


@torch.no_grad()
def lay_out(features: np.ndarray, grouped: bool = True) -> Layout:
    """From raw features, n×D; without groups where nobody will be asked."""
    raw = torch.from_numpy(np.asarray(features))
    some = raw[torch.linspace(0, len(raw) - 1, min(FITTED, len(raw))).long()].float()
    mean = some.double().mean(dim=0).float()
    directions, middle = half_whitened(some, mean), F.normalize(mean, dim=0)
    basis = directions - middle[:, None] * (middle @ directions)  # then it is all one whether the mean is subtracted
    rows = torch.cat([embed(part, basis) for part in torch.split(raw, _CHUNK)])
    count = min(NEAREST + 1, len(rows))
    found = [(part @ rows.T).topk(count, dim=1) for part in torch.split(rows, _CHUNK)]
    near, cosines = torch.cat([each.indices for each in found]), torch.cat([each.values for each in found])
    empty = some.new_empty(0, 0, 0)
    space = Clusters(mean, directions, empty, empty)
    groups = find_groups(torch.cat([space.embed(part) for part in torch.split(raw, _CHUNK)])) if grouped else []
    return Layout(basis, rows, near[:, 1:] if count > 1 else near, 1 - cosines[:, -2:][:, 0], groups)


def find_groups(rows: Tensor) -> list[np.ndarray]:
    """What looks alike: soft clusters of the rows, each row in the nearest."""
    if len(rows) < LEAST_GROUP:
        return []
    count = min(max(len(rows) // PER_GROUP, min(len(rows) // 8, 12), 1), MOST_GROUPS)
    nobody, nothing = rows[:0], torch.zeros(0, dtype=torch.int64)
    centers = find_centers(nobody, nothing, rows, 0, count, nobody, 1, ROUNDS)[1][0]
    nearness, nearest = (each.numpy() for each in (rows @ centers.T).max(dim=1))
    found = (np.flatnonzero(nearest == number) for number in range(count))
    ordered = [each[np.argsort(-nearness[each], kind="stable")] for each in found if len(each) >= LEAST_GROUP]
    return sorted(ordered, key=len, reverse=True)


@torch.no_grad()
def guess(layout: Layout, labels: np.ndarray, num_classes: int) -> Guess:
    """From labels (n): a class, `NONE` or `OPEN`."""
    count = len(labels)
    if num_classes == 0:
        nothing = np.zeros(count, np.float32)
        return Guess(np.full(count, -1), nothing, np.zeros(count, bool), nothing, nothing)
    said = labels > OPEN
    told, columns = torch.from_numpy(said), torch.from_numpy(np.where(labels == NONE, num_classes, labels)[said])
    fixed = F.one_hot(columns, num_classes + 1).float()
    mass = torch.zeros(count, num_classes + 1)
    mass[told] = fixed
    for _ in range(STEPS):
        mass = KEEP * mass[layout.near].mean(dim=1)
        mass[told] = fixed
    rows, open_ones = layout.rows, torch.from_numpy(np.flatnonzero(~said))
    some = open_ones[torch.linspace(0, len(open_ones) - 1, min(FITTED, len(open_ones))).long()]
    known, free = find_centers(
        rows[torch.from_numpy(labels >= 0)],
        torch.from_numpy(labels[labels >= 0]),
        rows[some],
        num_classes,
        free_centers(num_classes, len(some)),
        rows[torch.from_numpy(labels == NONE)],
        STARTS,
        ROUNDS,
    )
    outside = Clusters(rows.new_zeros(0), rows.new_zeros(0), known, free).odds(rows).sigmoid()[:, None]
    nearest = (SHARPNESS * rows @ known.mT).softmax(dim=2).mean(dim=0)
    clusters = torch.cat([(1 - outside) * nearest, outside], dim=1)
    votes = F.normalize(mass + CLUSTERS_SAY * clusters, p=1, dim=1)
    best, none = votes[:, :num_classes].max(dim=1), votes[:, num_classes]
    against = none / (none + best.values)
    around = torch.cat([torch.arange(count)[:, None], layout.near[:, : NEAREST - 1]], dim=1)
    limit, spread = layout.usual
    unknown = against[around].mean(dim=1) + ((layout.lonely - limit) / spread).clamp(min=0)
    two = votes.topk(2, dim=1).values
    lead = (two[:, 0] - two[:, 1]).numpy()
    inside = (unknown <= EVEN).numpy()
    return Guess(best.indices.numpy(), unknown.numpy(), inside, lead, against.numpy())


def ask_person(layout: Layout, labels: np.ndarray, num_classes: int, clusters: Clusters) -> PoolAsked:
    """The guess as an OOD score of any photo, by the photos nearest to it that were laid out; `clusters` have no say in
    it, but make the groups of what is unknown."""
    against = torch.from_numpy(guess(layout, labels, num_classes).against)
    limit, spread = layout.usual
    nodes = Neighbors(layout.basis, layout.rows, against, NEAREST)
    return PoolAsked(clusters, nodes, torch.tensor([0.0, 0.0, limit]), torch.tensor([SILENT, 0.5, spread]))


def next_question(layout: Layout, guessed: Guess, labels: np.ndarray, shown: Collection[int]) -> Question | None:
    """What to ask now: about a group of which next to nothing is said, the largest first; then about the single photo
    whose guess is least sure. Rows that were `shown` before make no group and come last; None: all is said."""
    seen = np.zeros(len(labels), bool)
    seen[list(shown)] = True
    touched = seen | (labels > OPEN)
    for group in layout.groups:
        rows = group[~touched[group]]
        if len(group) - len(rows) < SHOWN // 2 and len(rows) >= LEAST_GROUP:
            rows = rows[:SHOWN]
            guesses = np.where(guessed.inside[rows], guessed.classes[rows], NONE)
            values, counts = np.unique(guesses, return_counts=True)
            return Question(rows, int(values[counts.argmax()]))
    rows = np.flatnonzero(labels == OPEN)
    if not len(rows):
        return None
    first = rows[np.lexsort((guessed.sure[rows], seen[rows]))[0]]
    return Question(np.array([first]), int(guessed.classes[first]) if guessed.inside[first] else NONE)


def strip(guessed: Guess, labels: np.ndarray, number: int, count: int = SHOWN) -> Question:
    """Photos of no label that are taken for a class, the most unknown first."""
    rows = np.flatnonzero((labels == OPEN) & guessed.inside & (guessed.classes == number))
    return Question(rows[np.argsort(-guessed.unknown[rows], kind="stable")][:count], number)
