"""What a method is, and what it may ask of the engine.

A method is one file with a class derived from `Method`. It declares the streams of images it wants and their views,
its stages, and returns named loss terms for one batch; the engine does the rest. Hooks that a method does not need are
simply not overridden. Methods know no file, device or optimizer object; the engine knows no method by name.

A method outside the package works the same way: `osp train --method ./mine.py` takes the class in that file, and an
installed package may announce its own under the entry-point group `osp.methods`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from osp import scores
from osp.errors import UserError
from osp.methods.declared import Batch, ExtraOptimizer, OfImages, Part, Pool, Sample, Stage, Step, StreamSpec, Task
from osp.nets import Network

__all__ = ["UNPUBLISHED", "Method", "Options", "Published", "earlier_options", "published_for", "published_options"]
__all__ += ["Batch", "ExtraOptimizer", "OfImages", "Part", "Pool", "Sample", "Stage", "Step", "StreamSpec", "Task"]


class Options(BaseModel):
    """Options that every method has. A method adds its own by deriving from this class.

    An option that is added to a method which has results says what the method did before: with
    `json_schema_extra={"before": VALUE}`, runs with that value are the same runs as those made without the option, and
    are found in the store. Such a mark stays, whatever becomes of the default.

    An option that is taken away leaves its name and its last default in `removed`: the method now does what it did with
    that value, so runs with it are the same runs as those made without the option. One that had a mark `before` moves
    there with it, as `Field(VALUE, json_schema_extra={"before": VALUE})`; the two values must be the same.
    """

    removed: ClassVar[dict[str, Any]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    batch: int = Field(64, ge=1, le=10**9, description="labeled images per step")
    mu: int = Field(5, ge=1, le=10**9, description="unlabeled images per step, as a multiple of `batch`")
    optimizer: Literal["sgd", "adam", "adamw", "muon"] = Field(
        "sgd",
        description="optimizer of the network; muon: orthogonal steps for filters, SGD at twice the rate for the rest",
    )
    lr: float = Field(0.03, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    nesterov: bool = Field(True, description="Nesterov's form of momentum (muon has no other)")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay (muon: not of filters, whose length stays)")
    decay_all: bool = Field(False, description="weight decay also on biases and batch norms")
    schedule: Literal["cosine-7/16", "cosine", "steps", "constant"] = Field(
        "cosine-7/16", description="learning rate over a stage; cosine-7/16 ends at 0.195 of the start"
    )
    drops: tuple[float, ...] = Field((), description="shares of a stage where `steps` lowers the rate")
    drop_factor: float = Field(0.2, gt=0, description="factor of each drop")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of each stage over which the learning rate rises")
    clip: float | None = Field(5.0, gt=0, description="largest norm of the gradient of a step")
    ema: float | None = Field(0.999, gt=0, lt=1, description="decay of the averaged weights used for testing")
    score: str = Field(
        "pool", description="OOD score that is reported: one that any network has, or `own`, the method's"
    )
    weak: str = Field(
        "weak",
        description="view that the method gets where it asks for `weak`: another one, or a file of your own",
        json_schema_extra={"before": "weak"},
    )
    strong: str = Field(
        "strong", description="the same where it asks for `strong`", json_schema_extra={"before": "strong"}
    )

    @field_validator("score")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            return scores.check(value)
        except UserError as error:
            raise ValueError(str(error).rstrip(".")) from None


UNPUBLISHED: dict[str, Any] = {"warmup": 0.0, "clip": None, "ema": None, "score": "own"}
"""What the harness adds to every method; `--preset paper` does without it unless a method publishes it.

A stage that starts at its full rate can throw a network without batch norm into a state where all its units are dead.
"""


@dataclass(frozen=True)
class Published:
    """A value of the `paper` preset and where it comes from: the paper itself unless said otherwise."""

    value: Any
    source: str = "paper"
    by_data: Mapping[str, Any] = field(default_factory=dict)
    """Data sets for which another value was published; the source speaks of these too."""

    def value_for(self, data: str | None = None) -> Any:
        """What holds on this data set; the general value where nothing else was published for it, or for none.

        >>> decay = Published(5e-4, by_data={"cifar100": 1e-3})
        >>> decay.value_for("cifar100"), decay.value_for("digits"), decay.value_for()
        (0.001, 0.0005, 0.0005)
        """
        return self.value if data is None else self.by_data.get(data, self.value)

    @classmethod
    def all(cls, source: str, **values: Any) -> dict[str, Published]:
        """Values of several options that one source gives."""
        return {name: cls(value, source) for name, value in values.items()}


class Method(nn.Module):
    """Base of all methods: holds the network, declares nothing but a supervised default.

    A method defines `losses`, and `unlabeled_views` or `streams`; every other hook may be left as it is. The engine
    makes it as `Method(options, network, task)` and calls `losses(batch, step)` at each step, where `batch["labeled"]`
    is a `Sample`: its views by name, its `rows` and, where there are labels, its `targets`.

    All state must be parameters or buffers (they are what a checkpoint holds); counters are 0-d tensors. Buffers may
    change their size during a run.

    Raises UserError where a method that needs pixels is given stored features, and TypeError where `losses`, or both
    `unlabeled_views` and `streams`, are missing.

    >>> from torch.nn.functional import cross_entropy
    >>> from osp.nets import build_network
    >>> class Plain(Method):
    ...     unlabeled_views = ()
    ...     def losses(self, batch, step):
    ...         labeled = batch["labeled"]
    ...         return {"ce": cross_entropy(self.net(labeled["weak"]), labeled.targets)}
    >>> task = Task(num_classes=3, shape=(1, 8, 8), num_labeled=6, num_unlabeled=0, num_val=0)
    >>> method = Plain(Options(batch=2), build_network("cnn", task.shape, task.num_classes), task)
    >>> method.streams(method.stages()[0])
    {'labeled': StreamSpec(part='labeled', batch=2, views=('weak',))}
    >>> sample = Sample(torch.arange(2), {"weak": torch.zeros(2, 1, 8, 8)}, torch.tensor([0, 2]))
    >>> {name: term.shape for name, term in method.losses({"labeled": sample}, None).items()}
    {'ce': torch.Size([])}
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One line for `osp methods`."""
    reference: ClassVar[str] = ""
    """Authors, title and venue of the paper it comes from."""
    Options: ClassVar[type[Options]] = Options
    unlabeled_views: ClassVar[tuple[str, ...] | None] = None
    """Views of the unlabeled images, for a method whose streams are the usual ones; `()` is none of those images."""
    paper: ClassVar[dict[str, Published]] = {}
    """The options of `--preset paper` that differ from the defaults, or that the defaults merely happen to equal."""
    paper_data: ClassVar[tuple[str, ...]] = ("mnist", "cifar10", "cifar100", "tinyimagenet")
    """Data sets that the publication has settings for (by default those of the OSP paper's Table 1); on any other one
    `--preset paper` takes the general values."""
    paper_steps: ClassVar[int] = 250_000
    earlier: ClassVar[dict[str, Any]] = {}
    """Options whose defaults were others in version 0.1, and those: `--preset v0.1` finds the runs made with them."""
    labeled_views: ClassVar[int] = 1
    """Views of each labeled image that the classifier learns from: `batch` is chosen so that all methods have as many
    labeled views per step."""
    version: ClassVar[int] = 1
    """Raised when the method gives other numbers than before: results with another number are stale."""
    validation: ClassVar[str] = "nothing"
    """What the method uses validation images for, whether with their labels, and what it does without any: for tables.
    (Those of every method are also looked at for the curve of a run.)"""
    twice_differentiated: ClassVar[bool] = False
    """Whether `extra_losses` differentiates through a gradient: torch's batch norm for several GPUs cannot."""
    needs_pixels: ClassVar[bool] = False
    """Whether stored features of a frozen backbone will not do."""
    mechanism: ClassVar[tuple[str, ...]] = ()
    """Names of logged values that show the mechanism at work: one that stays 0 all run long is a warning."""

    def __init__(self, options: Any, network: Network, task: Task) -> None:
        super().__init__()
        self.check_shape(task.shape)
        self.options = options
        self.net = network
        self.task = task
        self.logged: dict[str, Tensor] = {}
        self.own_score: scores.Score = scores.build("softmax", network.feature_dim, task.num_classes)
        """The method's own OOD score; `use_score` puts another in its place."""

    @classmethod
    def check_shape(cls, shape: tuple[int, ...]) -> None:
        """Refuse stored features where pixels are needed: also for those who ask before they make features."""
        if cls.needs_pixels and len(shape) != 3:
            raise UserError(f"The method {cls.name} needs pixels and cannot learn from stored features; take another.")

    # What the method declares

    def stages(self) -> list[Stage]:
        """One stage with the options' optimizer; override for more."""
        return [self.stage()]

    def stage(self, **changes: Any) -> Stage:
        """A stage with the common options, changed where said."""
        common = {
            name: getattr(self.options, name) for name in Options.model_fields.keys() & Stage.__dataclass_fields__
        }
        return Stage(**{**common, **changes})

    def streams(self, stage: Stage) -> dict[str, StreamSpec]:
        """The streams of this stage by name.

        By default weak views of `batch` labeled images, and `unlabeled_views` of `mu` times as many unlabeled ones.
        """
        if self.unlabeled_views is None:
            raise UserError(
                f"The method {self.name!r} does not say which views it needs: set unlabeled_views = ('weak', 'strong') "
                "or () for the labels alone, or define streams(stage)."
            )
        streams = {"labeled": StreamSpec("labeled", self.options.batch, ("weak",))}
        if self.unlabeled_views:
            size = self.options.batch * self.options.mu
            streams["unlabeled"] = StreamSpec("unlabeled", size, self.unlabeled_views)
        return streams

    def losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Named, weighted loss terms of one batch; their sum is what is minimized."""
        raise UserError(f"The method {self.name!r} must define losses(self, batch, step).")

    # Hooks, all optional

    def begin_stage(self, step: Step, pool: Pool) -> None:
        """Before the first step of each stage (after fresh weights, where the stage asks for them)."""

    def refresh(self, step: Step, pool: Pool) -> None:
        """At the stage's refresh interval: partition the pool, relabel it, fill a bank."""

    def end_stage(self, step: Step, pool: Pool) -> None:
        """After the last step of each stage; `step` is that last step."""

    def extra_optimizers(self) -> dict[str, ExtraOptimizer]:
        """Parameters with an optimizer of their own, by name. They are left out of the main one."""
        return {}

    def extra_losses(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        """Losses for the extra optimizers, by their names, taken before `losses`.

        The engine differentiates each with respect to that optimizer's parameters only, and steps it.
        """
        return {}

    def after_step(self, batch: Batch, step: Step) -> None:
        """After the optimizer's step: update accumulators from what `losses` computed."""

    def kept(self) -> Tensor | None:
        """Which unlabeled rows the method currently takes for ID (boolean), where it partitions the pool."""
        return None

    def use_score(self, score: scores.Score) -> None:
        """Make this the method's own OOD score. Its parameters come after those that the method has so far."""
        del self.own_score
        self.own_score = score

    def artifacts(self) -> dict[str, dict[str, Tensor]]:
        """What a finished run keeps of the method besides its model: each becomes NAME.npz in the run folder, or
        method-NAME.npz where that is a file of the run itself."""
        return {}

    # The trained model

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, logits and own OOD scores of images, in single precision whatever the network computes in."""
        features = self.net.encode(images).float()
        with torch.autocast(features.device.type, enabled=False):
            logits = self.net.classify(features)
            return features, logits, self.ood_score(features, logits)

    def ood_score(self, features: Tensor, logits: Tensor) -> Tensor:
        """The method's own score; larger = more OOD; called in single precision."""
        found: Tensor = self.own_score(features, logits, self.net.classifier)
        return found

    # Help

    def log(self, name: str, value: Tensor | float) -> None:
        """Note a number for the log: it stays on the device until the log interval."""
        check_logged((name,), "log")
        self.logged[name] = torch.as_tensor(value).detach()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


LOGGED = frozenset({"loss", "step", "kind", "stage", "lr", "images_seen"})
"""What the run itself writes into each line of its log."""


def check_terms(terms: object) -> None:
    """Refuse what is no dictionary of scalar losses; nothing is read from the device."""
    if not isinstance(terms, Mapping) or not terms:
        found = "an empty one" if isinstance(terms, Mapping) else f"a {type(terms).__name__}"
        raise UserError(f"losses: a dictionary of named terms is wanted, such as {{'ce': loss}}, not {found}.")
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.ndim:
            found = f"a tensor of shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"a {type(term).__name__}"
            raise UserError(f"losses: the term {name!r} is {found}; one number is wanted, such as its mean().")
    check_logged(terms.keys() - ({"loss"} if len(terms) == 1 else ()), "losses")


def check_logged(names: Iterable[str], where: str) -> None:
    """Refuse names of numbers that would take the place of the run's own."""
    if taken := sorted(LOGGED.intersection(names)):
        raise UserError(f"{where}: the log of a run has a {taken[0]!r} of its own. Choose another name.")


def published_options(method: type[Method], data: str | None = None) -> dict[str, Any]:
    """The options of `--preset paper` on this data set: what the harness adds turned off, what was published set."""
    return UNPUBLISHED | {name: entry.value_for(data) for name, entry in method.paper.items()}


def earlier_options(method: type[Method]) -> dict[str, Any]:
    """The options of `--preset v0.1`: weights averaged where a publication does so, each method's own score."""
    ema = method.paper["ema"].value if "ema" in method.paper else None
    return {"ema": ema, "score": "own", **method.earlier}


def published_for(method: type[Method], data: str) -> bool:
    """Whether the publication has this data set; if not, its general values stand in and are to be marked so."""
    return data in method.paper_data or any(data in entry.by_data for entry in method.paper.values())
