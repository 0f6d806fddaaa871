"""The training loop: stages, steps, evaluations, checkpoints. Read `Loop.run` from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from osp.distributed import average_gradients
from osp.engine.batches import Feed
from osp.engine.checkpoint import load_checkpoint, load_state, prefixed, save_checkpoint, unprefixed
from osp.engine.folder import RunFolder
from osp.engine.optim import (
    AveragedWeights,
    build_optimizer,
    load_optimizer_tensors,
    main_parameters,
    optimizer_tensors,
)
from osp.engine.passes import FeedPool, map_images
from osp.engine.progress import Display
from osp.engine.schedule import Timetable, refreshes
from osp.engine.signals import Interrupted, stop_signals
from osp.engine.tally import Tally
from osp.errors import UserError
from osp.evaluate.metrics import accuracy, detection, partition_quality
from osp.methods.base import Batch, ExtraOptimizer, Method, Outputs, Stage, Step
from osp.nets import BATCH_NORMS, StepDropout
from osp.randomness import key_to_seed
from osp.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricOptimizer

CHECKPOINT_SECONDS = 60.0
POOL_SAMPLE = 2000
"""Unlabelled images scored at each validation for `pool_auroc`; the whole pool is scored once, at the end."""


class Loop:
    """One run of one method. Everything that changes during the run is in `tensors()` and `meta()`."""

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        fresh_method: Callable[[str], Method],
        feed: Feed,
        truth: np.ndarray | None,
        folder: RunFolder,
        fabric: Fabric,
        display: Display,
        model: dict[str, Any],
    ) -> None:
        self.model = model  # what a reader of the weights must know: task, class names, normalisation
        self.recipe, self.method, self.fresh_method, self.feed = recipe, method, fresh_method, feed
        self.truth = truth  # which unlabelled images are OOD, where that is known: for metrics only
        self.folder, self.fabric, self.display = folder, fabric, display
        assert recipe.steps is not None
        self.timetable = Timetable.make(
            method.stages(), recipe.steps, recipe.seed, fabric.global_rank, fabric.world_size
        )
        self.dropouts = [module for module in method.modules() if isinstance(module, StepDropout)]
        for stage in self.timetable.stages:  # what no stream can draw from is refused before anything is written
            feed.open_streams(method.streams(stage), fabric.world_size)
        ema = method.options.ema
        self.averaged = AveragedWeights(method, ema) if ema else None
        self.done = 0
        self.images_seen = 0
        self.seconds = 0.0
        self.best = -1.0
        self.warnings: list[str] = []
        self.tally = Tally()
        self.activity = Tally()
        self._saved: dict[str, Tensor] = {}
        self.extra = self.extra_optimizers()
        self.writer = tensorboard_writer(folder) if recipe.tensorboard else None

    def run(self) -> None:
        """Train from wherever the run stands to its end."""
        self.open_stage(self.timetable.step(min(self.done, self.timetable.total - 1)), resumed=self.done > 0)
        self.display.begin(self.timetable.total, self.done)
        self.method.train()
        clock, saved = time.monotonic(), time.monotonic()
        try:
            with stop_signals() as stopped:
                while self.done < self.timetable.total:
                    step = self.timetable.step(self.done)
                    if step.stage_step == 0:
                        self.begin_stage(step)
                    if refreshes(step):
                        self.hook(self.method.refresh, step)
                    self.advance(step)
                    if step.stage_step == step.stage_steps - 1:
                        self.hook(self.method.end_stage, step)
                    self.display.step(self.done, step.stage.name)
                    if self.done % self.log_every == 0 or self.done == self.timetable.total:
                        self.log(step)
                    now = time.monotonic()
                    self.seconds += now - clock
                    clock = now
                    if self.done % self.eval_every == 0 or self.done == self.timetable.total:
                        self.evaluate(step)
                    if stopped() or now - saved > CHECKPOINT_SECONDS:
                        self.save()
                        saved = time.monotonic()
                    if stopped() and self.done < self.timetable.total:
                        raise Interrupted
                    now = time.monotonic()
                    self.seconds += now - clock
                    clock = now
        finally:
            self.display.end()
            if self.writer is not None:
                self.writer.close()

    # One step

    def advance(self, step: Step) -> None:
        """Views, update, the method's own book-keeping: what `osp bench speed` measures."""
        batch = self.feed.batch(step)
        self.update(batch, step)
        self.method.after_step(batch, step)
        self.done += 1
        self.images_seen += sum(spec.batch * len(spec.views) for spec in self.feed.specs.values())

    def update(self, batch: Batch, step: Step) -> None:
        """Losses, gradients, optimiser: the whole update is here."""
        for dropout in self.dropouts:
            dropout.set_step(step.seed, step.index, step.rank, step.world)
        torch.manual_seed(key_to_seed(step.seed, step.index, "torch", step.rank))  # for a user's module that draws
        with self.fabric.autocast():
            extra_losses = self.method.extra_losses(batch, step)
        for name, loss in extra_losses.items():
            optimizer = self.extra[name]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            average_gradients(parameters)
            optimizer.optimizer.step()  # not through fabric: its loss scaling knows nothing of these gradients
            optimizer.zero_grad(set_to_none=True)
        with self.fabric.autocast():
            terms = self.method.losses(batch, step)
            total = torch.stack([term.float() for term in terms.values()]).sum()
        self.fabric.backward(total)
        average_gradients(self.parameters)
        if self.method.options.clip:
            self.fabric.clip_gradients(
                self.method, self.optimizer, max_norm=self.method.options.clip, error_if_nonfinite=False
            )
        rate = self.timetable.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.averaged is not None:
            self.averaged.update()
        self.tally.add({"loss": total.detach(), **{name: term.detach() for name, term in terms.items()}})
        self.take_logged()

    def take_logged(self) -> None:
        """Add what the method noted since the last time; nothing is read from the device here."""
        logged, self.method.logged = self.method.logged, {}
        self.tally.add(logged)
        self.activity.add({name: logged[name] for name in self.method.mechanism if name in logged})

    # Stages and hooks

    def optimizer_for(self, settings: Stage | ExtraOptimizer, parameters: Iterable[nn.Parameter]) -> _FabricOptimizer:
        optimizer = self.fabric.setup_optimizers(build_optimizer(settings, parameters))
        assert not isinstance(optimizer, tuple)
        return optimizer

    def extra_optimizers(self) -> dict[str, _FabricOptimizer]:
        settings = self.method.extra_optimizers()
        return {name: self.optimizer_for(each, each.parameters) for name, each in settings.items()}

    def open_stage(self, step: Step, resumed: bool = False) -> None:
        """The streams of this stage, and a new optimiser unless the stage continues the last one."""
        waits = resumed and step.stage_step == 0 and step.index == self.done  # the stage has not begun yet
        if waits and not step.stage.continues:
            self._saved = {}
            return
        if resumed or not (step.stage.continues and step.stage_index > 0):
            self.parameters = main_parameters(self.method)
            self.optimizer = self.optimizer_for(step.stage, self.parameters)
        if resumed:
            load_optimizer_tensors(self.optimizer.optimizer, unprefixed("optimizer", self._saved))
        if not waits:
            self.feed.open_streams(self.method.streams(step.stage), step.world)
        if resumed and not waits:
            self.feed.load_state(unprefixed("streams", self._saved))
        self._saved = {}

    def begin_stage(self, step: Step) -> None:
        self.open_stage(step)
        if step.stage.fresh and step.stage_index > 0:
            restart_weights(self.method, self.fresh_method(f"stage {step.stage_index}"))
            self.extra = self.extra_optimizers()
            if self.averaged is not None:
                self.averaged.restart()
        self.hook(self.method.begin_stage, step)

    def hook(self, function: Callable[[Step, Any], None], step: Step) -> None:
        """Run a hook of the method with a pool to pass over."""
        pool = FeedPool(self.method, self.feed, self.done, self.averaged, self.fabric.autocast)
        torch.manual_seed(key_to_seed(step.seed, step.index, function.__name__, step.rank))
        function(step, pool)
        for message in pool.messages:
            self.display.say(f"step {self.done}: {message}")
            if message not in self.warnings:
                self.warnings.append(message)
        self.take_logged()

    # Evaluation and logs

    @property
    def log_every(self) -> int:
        assert self.recipe.log_every is not None
        return self.recipe.log_every

    @property
    def eval_every(self) -> int:
        assert self.recipe.eval_every is not None
        return self.recipe.eval_every

    @contextmanager
    def reported_weights(self) -> Iterator[None]:
        """Inside, the model is the one that is reported: with averaged weights where the method has them."""
        if self.averaged is None:
            yield
        else:
            with self.averaged.applied():
                yield

    def outputs(self, index: np.ndarray, feed: Feed | None = None) -> Outputs:
        """Features, logits and OOD scores of images by index (training images by default), from the reported model."""
        with self.reported_weights():
            outputs = method_outputs(self.method, feed or self.feed, index, self.fabric.autocast)
        self.check_finite(outputs.logits, outputs.ood_score)
        return outputs

    def scores(self, index: np.ndarray) -> np.ndarray:
        """OOD scores of training images alone: the features of a large pool would not fit."""
        with self.reported_weights():
            (scores,) = map_images(
                lambda images: self.method.outputs(images)[2], self.method, self.feed, index, self.fabric.autocast
            )
        self.check_finite(scores.numpy())
        return scores.numpy()

    def fit_score(self) -> None:
        """Fit the reported OOD score to the labelled images, where it is one that is fitted."""
        score = self.method.post_hoc
        if score is not None and score.fitted:
            with self.reported_weights():
                (features,) = map_images(
                    self.method.net.encode, self.method, self.feed, self.feed.index["labeled"], self.fabric.autocast
                )
            score.fit(features, self.feed.targets["labeled"])

    def check_finite(self, *values: np.ndarray) -> None:
        if not all(np.isfinite(each).all() for each in values):
            step = self.timetable.step(self.done - 1)
            raise UserError(f"The network's outputs are no longer numbers at step {self.done}. {advice(step)}")

    def evaluate(self, step: Step) -> None:
        """Validation accuracy, and how well pool images are told apart (the truth is for the metric only)."""
        line: dict[str, float | None] = {}
        self.fit_score()
        validation = self.outputs(self.feed.index["val"])
        line["val_accuracy"] = accuracy(validation.logits, self.feed.targets["val"].cpu().numpy())
        pool = self.feed.index["unlabeled"]
        if self.truth is not None and self.truth.any() and not self.truth.all():
            rows = np.linspace(0, len(pool) - 1, min(POOL_SAMPLE, len(pool))).astype(np.int64)
            scores = self.scores(pool[rows])
            line["pool_auroc"] = detection(scores[~self.truth[rows]], scores[self.truth[rows]])["auroc"]
        kept = self.method.kept()
        if kept is not None and self.truth is not None:
            line.update(partition_quality(kept.cpu().numpy(), self.truth))
        self.write(step, "eval", {name: value for name, value in line.items() if value is not None})
        value = line["val_accuracy"]
        if value is not None and value > self.best:
            self.best = value
            self.save_model(self.folder.best, validation)

    def log(self, step: Step) -> None:
        """The only place where the loop waits for the device."""
        values = self.tally.means()
        if not math.isfinite(values["loss"]):
            names = [name for name, value in values.items() if not math.isfinite(value)]
            raise UserError(f"The loss is no longer a number at step {self.done} ({', '.join(names)}). {advice(step)}")
        rate = self.timetable.rate(step)
        self.write(step, "train", {**values, "lr": rate, "images_seen": self.images_seen})

    def write(self, step: Step, kind: str, values: dict[str, Any]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.folder.append_metrics({"step": self.done, "kind": kind, "stage": step.stage.name, **finite})
        shown = {name: value for name, value in finite.items() if name not in ("lr", "images_seen")}
        self.display.values(self.done, step.stage.name, shown)
        if self.writer is not None:
            for name, value in finite.items():
                self.writer.add_scalar(f"{kind}/{name}", value, self.done)

    # Checkpoints

    def meta(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            **self.model,
            "done": self.done,
            "images_seen": self.images_seen,
            "seconds": self.seconds,
            "best": self.best,
            "warnings": self.warnings,
            "averaged_updates": self.averaged.updates if self.averaged is not None else 0,
            "precision": self.fabric.strategy.precision.state_dict(),  # the loss scaling of 16-mixed
            "tally": self.tally.counts,
            "activity": self.activity.counts,
        }

    def save(self) -> None:
        """Everything the run needs to go on."""
        tensors = prefixed("method", self.method.state_dict())
        tensors |= prefixed("optimizer", optimizer_tensors(self.optimizer.optimizer))
        for name, optimizer in self.extra.items():
            tensors |= prefixed(f"extra/{name}", optimizer_tensors(optimizer.optimizer))
        if self.averaged is not None:
            tensors |= prefixed("averaged", {str(k): tensor for k, tensor in enumerate(self.averaged.average)})
        tensors |= prefixed("streams", self.feed.state())
        tensors |= prefixed("tally", self.tally.sums) | prefixed("activity", self.activity.sums)
        save_checkpoint(self.folder.last, tensors, self.meta())

    def save_model(self, path: Path, validation: Outputs) -> float:
        """The reported model alone, as `osp.load` reads it; returns its threshold, which 95 % of the images pass.

        The activity is kept with it: a run that breaks off between this and its result ends with the same result.
        """
        threshold = float(np.quantile(validation.ood_score, 0.95))
        with self.reported_weights():
            state = self.method.state_dict()
            needed = {name: each for name, each in state.items() if not name.startswith(self.method.training_only)}
            tensors = prefixed("method", needed) | prefixed("activity", self.activity.sums)
            save_checkpoint(path, tensors, self.meta() | {"threshold": threshold})
        return threshold

    def resume(self) -> None:
        """Take up the last checkpoint."""
        tensors, meta = load_checkpoint(self.folder.last)
        tensors = {name: tensor.to(self.fabric.device) for name, tensor in tensors.items()}
        trained = meta["done"] == self.timetable.total  # the last step's file may be the model alone
        may_lack = self.method.training_only if trained else ()
        load_state(self.method, unprefixed("method", tensors), self.folder.last, may_lack)
        self.done, self.images_seen, self.seconds = meta["done"], meta["images_seen"], meta["seconds"]
        self.best, self.warnings = meta["best"], meta["warnings"]
        for name, optimizer in self.extra.items():
            load_optimizer_tensors(optimizer.optimizer, unprefixed(f"extra/{name}", tensors))
        if self.averaged is not None:
            self.averaged.restart()  # a finished model's weights are the averaged ones
            self.averaged.updates = meta["averaged_updates"]
            for key, tensor in unprefixed("averaged", tensors).items():
                self.averaged.average[int(key)].copy_(tensor)
        self.fabric.strategy.precision.load_state_dict(meta["precision"])
        self.tally.restore(unprefixed("tally", tensors), meta["tally"])
        self.activity.restore(unprefixed("activity", tensors), meta["activity"])
        self.folder.rewind_metrics(self.done)
        self._saved = tensors


def method_outputs(method: Method, feed: Feed, index: np.ndarray, autocast: Callable[[], Any]) -> Outputs:
    """Features, logits and OOD scores of the feed's images; the encoder runs once."""
    return Outputs(*(tensor.numpy() for tensor in map_images(method.outputs, method, feed, index, autocast)))


@torch.no_grad()
def restart_weights(method: Method, fresh: Method) -> None:
    """Give what is trained its initial values, batch-norm statistics included; other state of the method stays."""
    for module, initial in zip(method.modules(), fresh.modules(), strict=True):
        own = list(module.parameters(recurse=False))
        if not own or not all(parameter.requires_grad for parameter in own):
            continue  # a frozen copy, such as a teacher, is not trained
        for parameter, start in zip(own, initial.parameters(recurse=False), strict=True):
            parameter.copy_(start)
        if isinstance(module, BATCH_NORMS):
            for tensor, value in zip(module.buffers(recurse=False), initial.buffers(recurse=False), strict=True):
                tensor.copy_(value)


def advice(step: Step) -> str:
    return f"Try a smaller learning rate, for example --set lr={step.stage.lr / 3:.2g}."


def tensorboard_writer(folder: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("tensorboard: the extra is not installed; run `pip install 'osp[tensorboard]'`.") from None
    return SummaryWriter(str(folder.path / "tensorboard"))
