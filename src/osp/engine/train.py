"""`osp.train`: from a recipe to a finished run folder."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from osp.data.augment import Augmenter
from osp.data.split import Split
from osp.engine.data import Data, open_data
from osp.engine.devices import open_fabric
from osp.engine.feed import Feed
from osp.engine.folder import RunFolder
from osp.engine.loop import Loop
from osp.engine.progress import Display, Silent
from osp.errors import UserError
from osp.evaluate.metrics import accuracy, detection, interclass_variance, mean_angle, partition_quality
from osp.methods.base import Method, Outputs, Task
from osp.methods.registry import get
from osp.nets import batchnorm_momentum, build_network, set_batchnorm_momentum
from osp.randomness import key_to_seed
from osp.recipe import Recipe, explain

if TYPE_CHECKING:
    from osp.model import Model

CPU_GROUP = 128
"""Images a pass on a CPU: larger ones leave its caches."""

Draw = Callable[[RunFolder, Data, np.ndarray, dict[str, Any], list[dict[str, Any]]], None]
"""Draws the run's picture from its folder, data, OOD scores of the pool, result and metrics. Handed in by the door:
pictures belong to the report, which the engine does not know."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path
    result: dict[str, Any]
    _model: list[Model] = field(default_factory=list, repr=False)

    @property
    def model(self) -> Model:
        """The trained model (loaded from the run folder when first asked for)."""
        if not self._model:
            from osp.model import load

            self._model.append(load(self.path))
        return self._model[0]


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    network: nn.Module | None = None,
    display: Display | None = None,
    loading: Any = None,
    draw: Draw | None = None,
) -> Run:
    """Train what the recipe describes, in the folder `out` (by default runs/<data>-<method>-...).

    `resume=True` continues the run in that folder; a finished one is returned as it is. `network` replaces the
    recipe's network by a copy of a torch module of your own that turns images into feature vectors. `draw` makes the
    picture of the result.
    """
    recipe = recipe.resolved()
    if network is not None:
        recipe = recipe.changed(network="custom")
    folder = RunFolder(Path(out).expanduser() if out is not None else default_folder(recipe))
    display = display or Silent()
    split: Split | None = None
    if resume:
        recipe = continued(folder, recipe)
        finished = folder.read_result()
        if finished is not None:
            display.say(f"The run in {folder.path} is finished.")
            return Run(folder.path, finished)
        split = Split.load(folder.split) if folder.split.exists() else None
    else:
        folder.check_free()

    fabric = open_fabric(recipe)
    data = open_data(recipe, split, loading)
    loop = build_loop(recipe, data, folder, fabric, display, network)
    if not folder.checkpoints.exists():
        folder.create(recipe)
    folder.lock()
    try:
        if split is None:
            save_split(data.split, folder)
        folder.check_data(data.fingerprints)
        if data.sets is not None:
            data.split.check(*data.sets)
        if resume and folder.last.exists():
            loop.resume()
            display.say(f"Going on at step {loop.done} of {recipe.steps}.")
        else:
            folder.rewind_metrics(0)  # of a run that was stopped before its first checkpoint
        loop.run()
        result = finish(loop, data, draw)
    finally:
        folder.unlock()
    return Run(folder.path, result)


def save_split(split: Split, folder: RunFolder) -> None:
    try:
        split.save(folder.split)
    except OSError as error:
        raise UserError(f"Cannot write {folder.split}: {error.strerror or error}.") from error


def default_folder(recipe: Recipe) -> Path:
    """runs/mnist-fixmatch-r0.6-s0"""
    method = Path(recipe.method).stem
    ratio = "" if recipe.ood_ratio is None else f"-r{recipe.ood_ratio:g}"
    other = "" if recipe.ood_data is None else f"-{recipe.ood_data}"
    return Path("runs") / f"{recipe.data}{other}-{method}{ratio}-s{recipe.seed}"


def continued(folder: RunFolder, recipe: Recipe) -> Recipe:
    """The stored recipe, if `recipe` agrees with it; where they differ, the fields are named."""
    if not folder.recipe.exists():
        raise UserError(f"There is no run in {folder.path} to resume (no recipe.yaml).")
    stored = Recipe.read(folder.recipe)
    free = {"device", "threads", "data_dir", "ood_dir", "tensorboard"}  # where and how, not what
    differing = [
        f"{key} is {mine!r} there, {yours!r} here"
        for key, mine in stored.model_dump(mode="json").items()
        if key not in free and mine != (yours := recipe.model_dump(mode="json")[key])
    ]
    if differing:
        raise UserError(
            f"The run in {folder.path} was started with other options:\n  "
            + "\n  ".join(differing)
            + "\nResume it without changing them, or start a new run with another --out."
        )
    return recipe


def build_loop(
    recipe: Recipe, data: Data, folder: RunFolder, fabric: Any, display: Display, network: nn.Module | None
) -> Loop:
    """Method, views and loop for a resolved recipe and its data."""
    split = data.split
    task = Task(
        num_classes=len(split.id_classes),
        shape=data.shape,
        num_labeled=len(split.labeled),
        num_unlabeled=len(split.unlabeled),
        num_val=len(split.val),
        steps=recipe.steps or 1,
    )
    assert recipe.steps is not None
    momentum = recipe.bn_momentum or batchnorm_momentum(recipe.steps)

    def fresh(key: str) -> Method:
        """The method with initial weights, which depend on the seed and the key alone."""
        torch.manual_seed(key_to_seed(recipe.seed, "weights", key))
        method = build_method(recipe, task, copy.deepcopy(network))
        set_batchnorm_momentum(method, momentum)
        return method.to(fabric.device)

    method = fresh("start")
    augmenter = Augmenter(
        data.shape, data.source.mean, data.source.std, mirror=data.source.mirror, cutout=data.source.cutout
    )
    feed = Feed(data.train, split, augmenter, recipe.seed, fabric.device)
    if recipe.channels_last:
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        feed.memory_format = torch.channels_last
    method.net.group = encoder_group(recipe, fabric.device)
    if recipe.compile:
        method.net.encoder.compile()
    model = {
        "task": asdict(task),
        "class_names": list(data.class_names),
        "mean": list(data.source.mean),
        "std": list(data.source.std),
    }
    return Loop(recipe, method, fresh, feed, data.truth, folder, fabric, display, model)


def encoder_group(recipe: Recipe, device: torch.device) -> int | None:
    """Images a pass through the encoder in training: what the recipe says, else by the device (docs/speed.md)."""
    if recipe.group is not None:
        return recipe.group or None
    return CPU_GROUP if device.type == "cpu" else None


def build_method(recipe: Recipe, task: Task, network: nn.Module | None = None) -> Method:
    """The method of a resolved recipe on its network."""
    kind = get(recipe.method)
    if recipe.network == "custom" and network is None:
        raise UserError("This run has a network of your own: give the module again (network=...).")
    assert recipe.network is not None
    net = build_network(network if network is not None else recipe.network, task.shape, task.num_classes)
    try:
        options = kind.Options(**recipe.options)
    except ValidationError as error:  # of a run that another version made
        raise UserError(explain(error, kind.Options, f"options of {kind.name}")) from None
    return kind(options, net, task)


def finish(loop: Loop, data: Data, draw: Draw | None = None) -> dict[str, Any]:
    """Test once, write the reported model, the result and its picture."""
    started = time.monotonic()
    split, method, recipe = data.split, loop.method, loop.recipe
    loop.fit_score()
    pool_scores = loop.scores(split.unlabeled)
    validation = loop.outputs(split.val if len(split.val) else split.labeled)
    test_feed = Feed(data.test, split, loop.feed.augmenter, recipe.seed, loop.feed.device)
    test_feed.memory_format = loop.feed.memory_format
    test, test_ood = (loop.outputs(index, test_feed) for index in (split.test, split.test_ood))
    threshold = loop.save_model(loop.folder.last, validation)
    result = {
        **describe(recipe, data),
        "steps": loop.done,
        "images_seen": loop.images_seen,
        "seconds": round(loop.seconds + time.monotonic() - started, 2),
        **measure(test, split.test_targets, test_ood, pool_scores, data.truth, method),
        "val_accuracy": round(accuracy(validation.logits, split.val_targets) or 0.0, 4) if len(split.val) else None,
        "threshold": threshold,
        "warnings": loop.warnings + idle_warnings(loop) + data_warnings(data) + chance_warnings(test, loop.done),
    }
    if draw is not None:
        draw(loop.folder, data, pool_scores, result, loop.folder.read_metrics())
    loop.folder.write_result(result)
    return result


def describe(recipe: Recipe, data: Data) -> dict[str, Any]:
    """What was run, in the words of the recipe; where that gives no OOD ratio, the split's own, if anybody knows it."""
    ratio = recipe.ood_ratio
    if ratio is None and data.truth is not None:
        ratio = float(data.truth.mean()) if len(data.truth) else 0.0
    return {
        "method": Path(recipe.method).stem,
        "dataset": recipe.data,
        "ood_data": recipe.ood_data,
        "data_variant": data.variant,
        "ood_ratio": ratio,
        "labels_per_class": recipe.labels_per_class,
        "unlabeled": len(data.split.unlabeled),
        "network": recipe.network,
        "preset": recipe.preset,
        "scale": recipe.scale,
        "seed": recipe.seed,
    }


def measure(
    test: Outputs,
    targets: np.ndarray,
    test_ood: Outputs,
    pool_scores: np.ndarray,
    truth: np.ndarray | None,
    method: Method,
) -> dict[str, float | None]:
    """The numbers of `result.json`; null where there is nothing to measure, never NaN."""
    found = detection(test.ood_score, test_ood.ood_score)
    softmax_scores = [1 - softmax_max(each.logits) for each in (test, test_ood)]
    numbers = {
        "accuracy": accuracy(test.logits, targets),
        "auroc": found["auroc"],
        "msp_auroc": detection(*softmax_scores)["auroc"],
        "pool_auroc": None,
        "aupr_id": found["aupr_id"],
        "aupr_ood": found["aupr_ood"],
        "fpr95": found["fpr95"],
        "purity": None,
        "recall": None,
        "angle": mean_angle(test.features, test_ood.features),
        "interclass_variance": interclass_variance(test.features, targets),
    }
    if truth is not None:
        numbers["pool_auroc"] = detection(pool_scores[~truth], pool_scores[truth])["auroc"]
        kept = method.kept()
        if kept is not None:
            numbers |= partition_quality(kept.cpu().numpy(), truth)
    return {key: None if value is None or not np.isfinite(value) else round(value, 4) for key, value in numbers.items()}


def softmax_max(logits: np.ndarray) -> np.ndarray:
    values: np.ndarray = torch.from_numpy(logits).softmax(dim=1).amax(dim=1).numpy()
    return values


IDLE = 1e-3
"""A mechanism whose activity is smaller than this on average did nothing to speak of."""


def idle_warnings(loop: Loop) -> list[str]:
    """A mechanism that hardly ever acted, or was never reported, is named."""
    means = {name: float(total) / loop.activity.counts[name] for name, total in loop.activity.sums.items()}
    return [
        f"{loop.method.name}: {name} was {means.get(name, 0):.2g} on average; the method's mechanism was idle"
        for name in loop.method.mechanism
        if means.get(name, 0) < IDLE
    ]


def chance_warnings(test: Outputs, steps: int) -> list[str]:
    """A network that names one class for every image has learned nothing, whatever its losses say."""
    if steps >= 100 and len(np.unique(test.logits.argmax(axis=1))) == 1:
        return ["the network gives every test image the same class; try a smaller learning rate or another seed"]
    return []


def data_warnings(data: Data) -> list[str]:
    files = "file was" if data.skipped == 1 else "files were"
    return [f"{data.skipped} unreadable image {files} left out"] if data.skipped else []
