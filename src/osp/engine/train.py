"""`osp.train`: from a recipe to a finished run folder. Read `train` from top to bottom."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from osp.data.gather import Images
from osp.data.pixel_views import PixelViews
from osp.data.split import Split, spec_for
from osp.data.views import Augmenter
from osp.engine.batches import Feed
from osp.engine.data import Data, open_data
from osp.engine.devices import check_device, open_fabric, process_settings
from osp.engine.loop import Loop
from osp.engine.progress import Display, Silent
from osp.engine.records import Records
from osp.engine.state import has_checkpoint, resume_run
from osp.errors import UserError, user_path
from osp.evaluate.predictions import Predictions
from osp.evaluate.result import measure
from osp.files import write_arrays, write_text
from osp.methods.base import Method, Task
from osp.methods.registry import get
from osp.nets import build_network, check_name, set_batchnorm_momentum
from osp.predictor import Predictor, load, save_predictor
from osp.randomness import key_to_seed
from osp.recipe import Plan, Recipe, explain, make_plan
from osp.recipe.plan import CUSTOM, SPLIT_FIELDS, file_content
from osp.runs.folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    result: dict[str, Any]
    plan: Plan = field(repr=False)
    data: Data | None = field(default=None, repr=False)
    """What it was trained on; None where the run was finished before."""
    network: nn.Module | None = field(default=None, repr=False)
    _model: list[Predictor] = field(default_factory=list, repr=False)

    @property
    def model(self) -> Predictor:
        """The trained model (loaded from the run folder when first asked for)."""
        if not self._model:
            method = self.plan.method if self.plan.method_content is not None else None
            self._model.append(load(self.path, network=copy.deepcopy(self.network), method=method))
        return self._model[0]


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    network: nn.Module | None = None,
    display: Display | None = None,
    loading: Any = None,
) -> Run:
    """Train what the recipe describes, in the folder `out` (by default runs/<data>-<method>-...).

    `resume=True` continues the run in that folder; a finished one is returned as it is. `network` replaces the
    recipe's network by a copy of a torch module of your own that turns images into feature vectors.
    """
    display = display or Silent()
    folder = RunFolder(folder_for(recipe, out))
    if resume:
        plan = stored_plan(folder, recipe)
        if (finished := finished_result(folder, plan)) is not None:
            display.say(f"The run in {folder.path} is finished.")
            return Run(folder.path, finished, plan, None, network)
    else:
        folder.check_free()
        plan = make_plan(recipe, custom_network=network is not None, progress=loading)
    check_device(plan.device, plan.precision)
    with process_settings(plan):
        return run_plan(plan, recipe, folder, resume, network, display, loading)


def run_plan(
    plan: Plan,
    recipe: Recipe,
    folder: RunFolder,
    resume: bool,
    network: nn.Module | None,
    display: Display,
    loading: Any = None,
) -> Run:
    """Carry out a plan in its folder."""
    fabric = open_fabric(plan)
    split = Split.load(folder.split) if resume and folder.split.exists() else None
    data = open_data(plan, split, loading, folder.read_data() if resume else None)
    records = Records(folder, display)
    loop = build_loop(plan, data, folder, fabric, records, network)
    with folder.owned():
        if not resume:
            folder.check_free()  # somebody else may have begun here while the data were read
            write_text(folder.plan, plan.dump())
        elif (finished := finished_result(folder, plan)) is not None:
            return Run(folder.path, finished, plan, None, network)
        if not folder.recipe.exists():
            write_text(folder.recipe, Recipe(**plan.recipe).dump())
        if plan.tensorboard:
            loop.records = Records(folder, display, tensorboard=True)
        if not folder.split.exists():
            data.split.save(folder.split)
        if not folder.data.exists():
            write_text(folder.data, json.dumps(data.keys, indent=2) + "\n")
        if has_checkpoint(folder):
            resume_run(loop)
            display.say(f"Going on at step {loop.at.done} of {plan.steps}.")
        else:
            folder.rewind_metrics(0)  # of a run that was stopped before its first checkpoint
        loop.run()
        result = finish(loop, data)
    return Run(folder.path, result, plan, data, network)


def finished_result(folder: RunFolder, plan: Plan) -> dict[str, Any] | None:
    """The result in the folder, unless the plan now asks for OOD sets that the model was not tested on."""
    result = folder.read_result()
    return None if result is not None and set(plan.test_ood) - set(result.get("other_ood") or {}) else result


def folder_for(recipe: Recipe, out: str | Path | None = None) -> Path:
    """`out`, or a name such as runs/mnist-fixmatch-r0.6-s0."""
    if out is not None:
        return user_path(out)
    data, seed = recipe.data or "digits", recipe.seed or 0
    given = {key: getattr(recipe, key) for key in SPLIT_FIELDS}
    ratio = spec_for(data, recipe.ood_data, seed=seed, **given).ood_ratio
    parts = [data, recipe.ood_data, Path(recipe.method or "osp").stem, None if ratio is None else f"r{ratio:g}"]
    return Path("runs") / "-".join([*(part for part in parts if part), f"s{seed}"])


def stored_plan(folder: RunFolder, recipe: Recipe) -> Plan:
    """The plan in the folder, if the recipe asks for nothing else; where it does, the fields are named."""
    if not folder.begun():
        made = folder.recipe.exists() or folder.result.exists()
        why = "it has no plan.yaml: another version made it" if made else "no plan.yaml"
        raise UserError(f"There is no run in {folder.path} to resume ({why}).")
    plan = Plan.read(folder.plan)
    if differing := plan.differences(recipe):
        raise UserError(
            f"The run in {folder.path} was started with other options:\n  "
            + "\n  ".join(differing)
            + "\nResume it without changing them, or start a new run with another --out."
        )
    plan = plan.moved(recipe)
    if plan.method_content is not None and recipe.method is None:
        raise UserError(f"This run was trained by the method file {plan.method}. If you trust it, name it: method=...")
    if plan.method_content is not None and file_content(plan.method) != plan.method_content:
        raise UserError(f"The method file {plan.method} has changed since the run in {folder.path} began.")
    return plan


def build_loop(
    plan: Plan, data: Data, folder: RunFolder, fabric: Fabric, records: Records, network: nn.Module | None
) -> Loop:
    """Method, views and loop for a plan and its data."""
    split = data.split
    task = Task(
        num_classes=len(split.id_classes),
        shape=data.shape,
        num_labeled=len(split.labeled),
        num_unlabeled=len(split.unlabeled),
        num_val=len(split.val),
        steps=plan.steps,
    )

    def fresh(key: str) -> Method:
        """The method with initial weights, which depend on the seed and the key alone."""
        torch.manual_seed(key_to_seed(plan.seed, "weights", key))
        method = build_method(plan, task, copy.deepcopy(network))
        set_batchnorm_momentum(method, plan.bn_momentum)
        return method.to(fabric.device)

    method = fresh("start")
    feed = Feed(pixel_views(data.train, data, plan, fabric.device), split, plan.seed, fabric.device)
    if plan.channels_last:
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method.net.group = plan.group or None
    if plan.compile:
        method.net.encoder.compile()

    moments = normalization(plan, data)

    def save_best(scores: dict[str, np.ndarray]) -> None:
        save_predictor(folder.best, loop.evaluation, scores, plan, data.class_names, *moments)

    loop = Loop(plan, method, fresh, feed, data.truth, folder, fabric, records, save_best)
    return loop


def normalization(plan: Plan, data: Data) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the pixels: the network's own, where it has them, else the data set's."""
    spec = None if plan.network == CUSTOM else check_name(plan.network)
    if spec is not None and spec.mean is not None and spec.std is not None:
        return spec.mean, spec.std
    return data.source.mean, data.source.std


def pixel_views(images: Images, data: Data, plan: Plan, device: torch.device) -> PixelViews:
    """The views of these images, as the set's kind allows and the network wants them."""
    mean, std = normalization(plan, data)
    augmenter = Augmenter(data.shape, mean, std, mirror=data.source.mirror, cutout=data.source.cutout)
    return PixelViews(images, augmenter, device, channels_last=plan.channels_last)


def build_method(plan: Plan, task: Task, network: nn.Module | None = None) -> Method:
    """The method of a plan on its network."""
    kind = get(plan.method)
    if plan.network == CUSTOM and network is None:
        raise UserError("This run has a network of your own: give the module again (network=...).")
    net = build_network(network if network is not None else plan.network, task.shape, task.num_classes)
    try:
        options = kind.Options(**plan.options)
    except ValidationError as error:  # of a run that another version made
        raise UserError(explain(error, kind.Options, f"options of {kind.name}")) from None
    return kind(options, net, task)


def finish(loop: Loop, data: Data) -> dict[str, Any]:
    """Test once, write the reported model, the predictions and, last of all, the result."""
    started = time.monotonic()
    predictions = predict_everything(loop, data)
    known = predictions.groups["validation"] if len(predictions.groups["validation"]) else predictions.groups["labeled"]
    moments = normalization(loop.plan, data)
    save_predictor(loop.folder.model, loop.evaluation, known.scores, loop.plan, data.class_names, *moments)
    write_arrays(loop.folder.predictions, predictions.arrays())
    for name, arrays in loop.method.artifacts().items():
        path = loop.folder.path / f"{name}.npz"
        write_arrays(path, {key: tensor.cpu().numpy() for key, tensor in arrays.items()})
    found = measure(predictions, data.truth)
    test = predictions.groups["test"]
    result = {
        **describe(loop.plan, data),
        "steps": loop.at.done,
        "images_seen": loop.at.images_seen,
        "seconds": round(loop.at.seconds + time.monotonic() - started, 2),
        **found,
        "versions": loop.plan.versions,
        "identity": loop.plan.identity(),
        "warnings": loop.at.warnings
        + idle_warnings(loop)
        + data_warnings(data)
        + chance_warnings(test.predicted, loop.at.done),
    }
    loop.folder.write_result(result)
    loop.folder.forget_previous()
    return result


def predict_everything(loop: Loop, data: Data) -> Predictions:
    """One look at all images with the reported weights: the only time test images are seen."""
    split, evaluation = data.split, loop.evaluation
    evaluation.fit()
    views = pixel_views(data.test, data, loop.plan, loop.feed.device)
    test_feed = Feed(views, split, loop.plan.seed, loop.feed.device)
    groups = {
        "test": evaluation.group(split.test, split.test_targets, test_feed),
        "test_ood": evaluation.group(split.test_ood, None, test_feed),
        "validation": evaluation.group(split.val, split.val_targets),
        "labeled": evaluation.group(split.labeled, split.labeled_targets),
    }
    for name, images in data.other_ood.items():
        views = pixel_views(images, data, loop.plan, loop.feed.device)
        other_feed = Feed(views, split, loop.plan.seed, loop.feed.device)
        groups[f"ood:{name}"] = evaluation.group(np.arange(len(images)), None, other_feed)
    return evaluation.predictions(groups, evaluation.pool())


def describe(plan: Plan, data: Data) -> dict[str, Any]:
    """What was run, in the words of the plan; where that gives no OOD ratio, the split's own, if anybody knows it."""
    ratio = plan.ood_ratio
    if ratio is None and data.truth is not None:
        ratio = float(data.truth.mean()) if len(data.truth) else 0.0
    return {
        "method": plan.method_name,
        "dataset": plan.data,
        "ood_data": plan.ood_data,
        "data_variant": data.variant,
        "ood_ratio": ratio,
        "labels_per_class": plan.labels_per_class,
        "unlabeled": len(data.split.unlabeled),
        "class_names": list(data.class_names),
        "network": plan.network,
        "preset": plan.preset,
        "scale": plan.scale,
        "seed": plan.seed,
    }


IDLE = 1e-3
"""A mechanism whose activity is smaller than this on average did nothing to speak of."""


def idle_warnings(loop: Loop) -> list[str]:
    """A mechanism that hardly ever acted, or was never reported, is named."""
    means = {name: float(total) / loop.at.activity.counts[name] for name, total in loop.at.activity.sums.items()}
    return [
        f"{loop.method.name}: {name} was {means.get(name, 0):.2g} on average; the method's mechanism was idle"
        for name in loop.method.mechanism
        if means.get(name, 0) < IDLE
    ]


def chance_warnings(predicted: np.ndarray, steps: int) -> list[str]:
    """A network that names one class for every image has learned nothing, whatever its losses say."""
    if steps >= 100 and len(np.unique(predicted)) == 1:
        return ["the network gives every test image the same class; try a smaller learning rate or another seed"]
    return []


def data_warnings(data: Data) -> list[str]:
    files = "file was" if data.skipped == 1 else "files were"
    return [f"{data.skipped} unreadable image {files} left out"] if data.skipped else []
