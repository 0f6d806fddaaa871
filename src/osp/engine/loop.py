"""The training loop: stages, steps, hooks, and when to log, evaluate and save. Read `Loop.run` from top to bottom."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from osp.distributed import Everywhere, any_rank, average_gradients, first, meet, rank, world
from osp.engine.batches import Feed
from osp.engine.data import Data, normalization
from osp.engine.devices import check_step
from osp.engine.evaluation import Evaluation, NotFinite
from osp.engine.optim import AveragedWeights, build_optimizer, clip_gradients, load_optimizer_tensors, main_parameters
from osp.engine.passes import FeedPool, Passes
from osp.engine.records import Records, Tally
from osp.engine.schedule import Timetable, refreshes
from osp.engine.signals import Interrupted, stop_signals
from osp.engine.state import Checkpoints, Standing, has_checkpoint
from osp.errors import UserError
from osp.evaluate.metrics import partition_quality
from osp.files import write_arrays
from osp.methods.base import Batch, Method, Stage, Step, check_terms
from osp.models.trained import save_predictor
from osp.nets import BATCH_NORMS, StepDropout
from osp.randomness import key_to_seed
from osp.recipe import Plan
from osp.runs.checkpoint import unprefixed
from osp.runs.folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricOptimizer


class Loop:
    """One run of one method. Everything that changes during the run is in `at`, the method and the optimizers."""

    def __init__(
        self,
        plan: Plan,
        method: Method,
        fresh_method: Callable[[str], Method],
        feed: Feed,
        data: Data | None,
        folder: RunFolder,
        fabric: Fabric,
        records: Records,
    ) -> None:
        self.plan, self.method, self.fresh_method, self.feed = plan, method, fresh_method, feed
        self.data, self.truth = data, None if data is None else data.truth  # the truth is for metrics only
        self.folder, self.fabric, self.records = folder, fabric, records
        self.timetable = Timetable.make(method.stages(), plan.steps, plan.seed, rank(), world())
        self.dropouts = [module for module in method.modules() if isinstance(module, StepDropout)]
        for stage in self.timetable.stages:  # what no stream can draw from is refused before anything is written
            feed.open_streams(method.streams(stage), world())
        check_step(method, [method.streams(stage) for stage in self.timetable.stages], fabric.device)
        self.averaged = AveragedWeights(method, method.options.ema or None)
        self.passes = Passes(method, feed, self.averaged, fabric.autocast)
        self.evaluation = Evaluation(method, self.passes)
        self.at = Standing(done=0, images_seen=0, seconds=0.0, best=-1.0, warnings=[])
        self.tally = Tally()  # since the last line of the log
        self.activity = Tally()  # of the method's mechanism, over the whole run
        self.extra = self.extra_optimizers()
        self.first_bad = torch.tensor(-1, device=fabric.device)  # the first step whose loss was not finite
        self.checkpoints = Checkpoints(self)

    def run(self) -> None:
        """Train from wherever the run stands to its end."""
        total = self.timetable.total
        self.records.display.begin(total, self.at.done)
        self.method.train()
        clock = time.monotonic()
        try:
            with stop_signals() as stopped:
                while self.at.done < total:
                    step = self.timetable.step(self.at.done)
                    if step.stage_step == 0:
                        self.begin_stage(step)
                    if refreshes(step):
                        self.refresh(step)
                    self.advance(step)
                    if step.stage_step == step.stage_steps - 1:
                        self.hook(self.method.end_stage, step)
                    self.records.display.step(self.at.done, step.stage.name)
                    if self.at.done % self.plan.log_every == 0 or self.at.done == total:
                        self.log(step)
                    clock = self.count_seconds(clock)
                    if self.at.done % self.plan.eval_every == 0 or self.at.done == total:
                        self.evaluate(step)
                    self.checkpoints.clean = True
                    # A signal may reach one process before the others, and only the first one's clock counts.
                    stops, saves = any_rank(stopped(), first() and self.checkpoints.due())
                    if stops or saves or self.at.done == total:
                        self.checkpoints.save()
                    if stops and self.at.done < total:
                        meet()  # whoever leaves first ends the others, and one of them is still writing
                        raise Interrupted
                    clock = self.count_seconds(clock)
        except Exception:
            self.checkpoints.rescue()
            raise
        finally:
            self.records.display.end()

    def count_seconds(self, since: float) -> float:
        """Add the time since then to that of the run; what time it is now."""
        now = time.monotonic()
        self.at.seconds += now - since
        return now

    # One step

    def advance(self, step: Step) -> None:
        """Views, update, the method's own book-keeping: what `osp bench speed` measures."""
        batch = self.feed.batch(step)
        self.checkpoints.clean = False
        self.update(batch, step)
        self.method.after_step(batch, step)
        self.at.done += 1
        self.at.images_seen += sum(spec.batch * len(spec.views) for spec in self.feed.specs.values())

    def update(self, batch: Batch, step: Step) -> None:
        """Losses, gradients, optimizer: the whole update is here."""
        for dropout in self.dropouts:
            dropout.set_step(step.seed, step.index, step.rank, step.world)
        torch.manual_seed(key_to_seed(step.seed, step.index, "torch", step.rank))  # for a user's module that draws
        with self.autocast():
            extra_losses = self.method.extra_losses(batch, step)
        for name, loss in extra_losses.items():
            optimizer = self.extra[name]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            average_gradients(parameters)
            optimizer.step()  # not through fabric: its loss scaling knows nothing of these gradients
            optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            terms = self.method.losses(batch, step)
            check_terms(terms)
            total = torch.stack([term.float() for term in terms.values()]).sum()
        self.fabric.backward(total)
        average_gradients(self.parameters)
        if self.method.options.clip:
            scaler = getattr(self.fabric.strategy.precision, "scaler", None)
            clip_gradients(self.optimizer.optimizer, self.method.options.clip, scaler)
        rate = self.timetable.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.averaged.update()
        bad = (self.first_bad < 0) & ~total.detach().isfinite()
        self.first_bad = torch.where(bad, step.index, self.first_bad)
        self.tally.add({"loss": total.detach(), **{name: term.detach() for name, term in terms.items()}})
        self.take_logged()

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Fabric's, without its cache: before torch 2.11 weights cast without a graph got no gradient later."""
        with self.fabric.autocast():
            if torch.is_autocast_enabled(self.fabric.device.type):
                torch.set_autocast_cache_enabled(False)  # leaving the context puts it back
            yield

    def take_logged(self) -> None:
        """Add what the method noted since the last time; nothing is read from the device here."""
        logged, self.method.logged = self.method.logged, {}
        self.tally.add(logged)
        self.activity.add({name: logged[name] for name in self.method.mechanism if name in logged})

    # Stages and hooks

    def extra_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        settings = self.method.extra_optimizers()
        return {name: build_optimizer(each, each.parameters) for name, each in settings.items()}

    def use_optimizer(self, stage: Stage) -> None:
        """A new optimizer with the settings of this stage."""
        self.parameters = main_parameters(self.method)
        optimizer = self.fabric.setup_optimizers(build_optimizer(stage, self.parameters))
        assert not isinstance(optimizer, tuple)
        self.optimizer: _FabricOptimizer = optimizer

    def reopen_stage(self, saved: dict[str, Tensor]) -> None:
        """The stage in which a checkpoint stands, with the optimizer and the streams as they were.

        Where its first step is still to come, `begin_stage` opens it; only an optimizer that it continues is taken up.
        """
        step = self.timetable.step(min(self.at.done, self.timetable.total - 1))
        to_come = step.stage_step == 0 and step.index == self.at.done
        if to_come and not step.stage.continues:
            return
        self.use_optimizer(step.stage)
        load_optimizer_tensors(self.optimizer.optimizer, unprefixed("optimizer", saved))
        if not to_come:
            self.feed.open_streams(self.method.streams(step.stage), step.world)
            self.feed.load_state(unprefixed("streams", saved))

    def begin_stage(self, step: Step) -> None:
        """The streams of this stage, a new optimizer unless it continues the last one, and the method's own hook."""
        self.checkpoints.clean = False
        if not (step.stage.continues and step.stage_index > 0):
            self.use_optimizer(step.stage)
        self.feed.open_streams(self.method.streams(step.stage), step.world)
        if step.stage.fresh and step.stage_index > 0:
            restart_weights(self.method, self.fresh_method(f"stage {step.stage_index}"))
            self.extra = self.extra_optimizers()
            self.averaged.restart()
        self.hook(self.method.begin_stage, step)

    def refresh(self, step: Step) -> None:
        """Run the method's refresh; how good the partition is that the next step learns from goes into the log."""
        self.hook(self.method.refresh, step)
        kept = self.method.kept()
        if kept is not None and self.truth is not None:
            self.records.write(step, self.at.done + 1, "cut", partition_quality(kept.cpu().numpy(), self.truth))

    def hook(self, function: Callable[[Step, Any], None], step: Step) -> None:
        """Run a hook of the method with a pool to pass over."""
        self.checkpoints.clean = False
        pool = FeedPool(self.passes, self.at.done)
        torch.manual_seed(key_to_seed(step.seed, step.index, function.__name__, step.rank))
        function(step, pool)
        for message in pool.messages:
            self.records.display.say(f"step {self.at.done}: {message}")
            self.at.warn(message)
        self.take_logged()

    # Numbers

    def evaluate(self, step: Step) -> None:
        """Validation accuracy, how well OOD images of the pool are found, and how the features lie."""
        try:
            line, validation = self.evaluation.validate(self.truth)
        except NotFinite as error:
            raise self.failed(step, str(error)[:-1], []) from None
        self.records.write(step, self.at.done, "eval", line)
        value = line["val_accuracy"]
        if value is not None and value > self.at.best:
            self.at.best = value
            if self.data is not None and first():
                self.save_model(self.folder.best, validation.scores, self.data)

    def save_model(self, path: Path, known: Mapping[str, np.ndarray], data: Data) -> None:
        """Write the reported model; `known` are the scores of images known to be ID."""
        scores, moments = self.evaluation.scores, normalization(self.plan, data)
        with self.averaged.applied():
            save_predictor(
                path, self.method, scores, self.evaluation.reported, known, self.plan, data.class_names, *moments
            )

    def log(self, step: Step) -> None:
        """The only place where the loop waits for the device."""
        self.tally.share()
        values = self.tally.means()
        if not math.isfinite(values["loss"]):
            names = [name for name, value in values.items() if not math.isfinite(value)]
            raise self.failed(step, "The loss is no longer a number", names)
        rate = self.timetable.rate(step)
        self.records.write(step, self.at.done, "train", {**values, "lr": rate, "images_seen": self.at.images_seen})

    def failed(self, step: Step, what: str, terms: list[str]) -> UserError:
        """What to say of numbers that are none; the batch of the first such step is kept to be looked at."""
        began, kept = int(self.first_bad), ""
        if began >= 0 and self.timetable.step(began).stage_index == step.stage_index and first():
            kept = keep_batch(self.folder, self.feed.batch(self.timetable.step(began)), began, terms)
        at = self.at.done if began < 0 else began + 1
        named = f" ({', '.join(terms)})" if terms else ""
        stands = " The run stands at its last good checkpoint." if has_checkpoint(self.folder) else ""
        advice = f"Try a smaller learning rate, for example --set lr={step.stage.lr / 3:.2g}."
        return Everywhere(f"{what} at step {at}{named}.{kept}{stands} {advice}")


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


def keep_batch(folder: RunFolder, batch: Batch, step: int, terms: Sequence[str]) -> str:
    """Write the batch of a failed step beside the run, and where it is; nothing where even that fails."""
    arrays = {"step": np.array(step), "terms": np.array(list(terms))}
    for name, sample in batch.items():
        arrays[f"{name}/rows"] = sample.rows.cpu().numpy()
        if sample.labels is not None:
            arrays[f"{name}/labels"] = sample.labels.cpu().numpy()
        for view, images in sample.views.items():
            arrays[f"{name}/{view}"] = images.float().cpu().numpy()
    with contextlib.suppress(UserError):
        write_arrays(folder.failed_batch, arrays)
        return f" Its batch is kept in {folder.failed_batch.name}."
    return ""
