"""What a method declares and is given: its task, streams of images, stages, steps, passes over the pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from osp.errors import UserError
from osp.randomness import generator

Part = Literal["labeled", "unlabeled", "joint", "val"]
"""`joint` is the labeled images followed by the unlabeled ones."""
OfImages = Callable[[Tensor], Tensor | tuple[Tensor, ...]]
"""What is computed in a pass: from a chunk of images to one row, or several, for each of them."""


@dataclass(frozen=True)
class Task:
    """What a method may know of the data: numbers, never files and never the truth about unlabeled images."""

    num_classes: int
    shape: tuple[int, ...]
    """Channels, height and width of an image, or (D,) for stored features; what needs pixels asks for three."""
    num_labeled: int
    num_unlabeled: int
    num_val: int
    steps: int = 1
    """Length of the run: for a method whose stages have a least length besides their share."""
    id_share: float = 0.0
    """Share of ID images in the pool as whoever starts the run has estimated it without knowing the truth; 0: nobody
    has, and a method that wants it looks at the validation images."""


@dataclass(frozen=True)
class StreamSpec:
    """One stream of batches: which part of the data, how many images per step, and which views of each.

    Views: `plain` (only normalized), `flip`, `weak`, `strong`; a digit at the end (`weak2`) asks for a second,
    independent draw.
    """

    part: Part
    batch: int
    views: tuple[str, ...]


@dataclass
class Sample:
    """One stream's share of a batch."""

    rows: Tensor
    """Row numbers within the part: what a method indexes its per-image state with."""
    views: dict[str, Tensor]
    labels: Tensor | None = None
    """Class numbers; for `joint`, -1 where unlabeled; None for unlabeled images."""

    def __getitem__(self, view: str) -> Tensor:
        if view not in self.views:
            raise UserError(
                f"batch: this stream has the views {', '.join(self.views)}, not {view!r}; it must ask for it."
            )
        return self.views[view]

    @property
    def targets(self) -> Tensor:
        """The labels of a labeled sample."""
        if self.labels is None:
            raise UserError("batch: classes of unlabeled images never reach a method; this stream has none.")
        return self.labels


Batch = Mapping[str, Sample]


@dataclass(frozen=True)
class Stage:
    """A part of the run with its own optimizer, learning rate and length.

    Lengths, refreshes and drops are shares, so that a short run is the long one in small.
    """

    name: str = "train"
    share: float = 1.0
    """Of the whole run; shares are normalized to sum to one."""
    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    lr: float = 0.03
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_all: bool = False
    """Whether weight decay also acts on biases and batch norms."""
    schedule: Literal["cosine-7/16", "cosine", "steps", "constant"] = "cosine-7/16"
    drops: tuple[float, ...] = ()
    """With `steps`: the shares of the stage after which the learning rate is multiplied by `drop_factor`."""
    drop_factor: float = 0.2
    warmup: float = 0.0
    """Share of the stage over which the learning rate rises from nothing."""
    refresh: float | None = None
    """Call `Method.refresh` at the start of the stage and then each time this share of the stage has passed."""
    fresh: bool = False
    """Start from newly initialized weights (Curriculum Labeling's cycles) instead of the last stage's."""
    continues: bool = False
    """Keep the optimizer and its momentum, and let the last stage's schedule run on over both (SSB)."""


@dataclass(frozen=True)
class Step:
    """Where in the run a batch stands."""

    index: int
    total: int
    stage: Stage
    stage_index: int
    stage_step: int
    stage_steps: int
    seed: int
    rank: int = 0
    world: int = 1

    @property
    def progress(self) -> float:
        """Share of the stage that has passed, from 0 up to but not including 1."""
        return self.stage_step / self.stage_steps

    def falls_on(self, share: float) -> bool:
        """Whether this step is one of those at k · share of the stage, rounded, for k = 0, 1, 2, ..."""
        interval = max(share * self.stage_steps, 1.0)
        k = round(self.stage_step / interval)
        return round(round(k * interval, 6)) == self.stage_step  # a tenth of a share, ten times, is that share

    def linear_ramp(self, share: float) -> float:
        """min(t / (share * stage), 1); 1 where share is 0."""
        return 1.0 if share <= 0 else min(self.progress / share, 1.0)

    def sigmoid_ramp(self, share: float) -> float:
        """exp(-5 (1 - min(t / (share * stage), 1))²), the ramp of Laine and Aila."""
        return math.exp(-5.0 * (1.0 - self.linear_ramp(share)) ** 2)

    def generator(self, name: str) -> torch.Generator:
        """A CPU generator for this step's draws of this name.

        For numbers that belong to single images draw with `osp.parts.draws`: it does so for the global batch and keeps
        this process's rows.
        """
        return generator(self.seed, self.index, name)


class Pool(Protocol):
    """Full passes over a part of the data, for hooks: what the engine hands to `refresh` and the stage hooks."""

    def map(
        self,
        function: OfImages,
        part: Part = "unlabeled",
        rows: Tensor | None = None,
        ema: bool = False,
        view: str = "plain",
        train: bool = False,
    ) -> tuple[Tensor, ...]:
        """Apply a function to images of the part in chunks (plain view, eval mode, no gradient), in row order.

        All of them, or only these rows. `ema=True` runs it with the averaged weights, `view` gives it another view, and
        `train` leaves the network in training mode, for batch norms that are to be measured. A result has one row for
        each image; they are joined on the CPU.

        The function must do nothing but compute: over several processes each sees a share of the chunks, and all
        receive all results. (With `train` each sees all of them, so that all measure the same.)
        """

    def each(
        self, function: OfImages, take: Callable[..., None], part: Part = "unlabeled", rows: Tensor | None = None
    ) -> None:
        """Like `map`, but `take(rows, *results)` receives the results of one chunk after the other, in row order.

        On the device, in every process alike: for what is too much to be held at once.
        """

    def labels(self, part: Literal["labeled", "val"]) -> Tensor:
        """The class numbers of labeled or validation images, in row order."""

    def restrict(self, stream: str, rows: Tensor | None) -> None:
        """From the next step on, draw this stream only from these rows (None: from all again).

        An empty set is not an error: the stream then keeps what it had, and the run says so.
        """

    def restart_average(self, prefix: str = "") -> None:
        """Let the averaged weights of parameters whose names begin so start again from the present ones.

        For a hook that has put other weights into the network. Nothing happens in a run without averaged weights.
        """

    def warn(self, message: str) -> None:
        """Say this now, and among the warnings of the result."""


@dataclass(frozen=True)
class ExtraOptimizer:
    """Parameters that have an optimizer of their own (DS3L's weighting network)."""

    parameters: Iterable[nn.Parameter]
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
