"""From the instant answer on: a method of the engine trains a residual adapter on stored features.

The network starts as the instant answer (`osp.nets.adapter`: zero at the start, its classifier the instant head divided
by the temperature), so step 0 says what the instant answer says. Inputs are the instant head's own, sqrt(D) times as
long, so that each has a variance of one as networks like it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from osp.data.feature_views import FeatureViews
from osp.data.split import Split
from osp.engine.batches import Feed
from osp.engine.devices import open_fabric, process_settings
from osp.engine.loop import Loop
from osp.engine.progress import Silent
from osp.engine.records import Records
from osp.engine.signals import Interrupted
from osp.engine.train import build_method
from osp.methods.base import Method, Task
from osp.methods.registry import get
from osp.photos.features import Progress
from osp.photos.instant import Adapter, Instant, estimate_of, fit_head, fit_temperature, folds_of, softmax
from osp.randomness import key_to_seed
from osp.recipe.plan import Plan, decide_options, versions
from osp.runs.folder import RunFolder

STEPS = 150
"""Enough to leave the instant answer where the pile teaches better; a second or two of one core per fold."""
VIEWS = ("plain", "weak", "strong")


def improve(
    instant: Instant,
    stored: Mapping[str, np.ndarray],
    labels: np.ndarray,
    method: str = "osp",
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Instant | None, Instant]:
    """What `method` makes of the instant answer with figures of its own, and the better of the two.

    Both are cross-validated on the same folds; only a larger balanced accuracy counts as better. Nothing is tried where
    no image can be held out or the pile is empty.
    """
    counts = np.bincount(labels, minlength=len(instant.class_names))
    folds = folds_of(labels, counts, np.random.default_rng(seed))
    if folds.max() < 0 or len(stored["plain"]) == len(labels):
        return None, instant
    balance = 1 / (len(counts) * counts[labels])
    before, after = (np.zeros((len(labels), len(counts))) for _ in range(2))
    rows, rounds = instant.center(stored["plain"][: len(labels)]), int(folds.max()) + 1
    for fold in range(rounds):
        out = np.flatnonzero(folds == fold)
        weight, bias = fit_head(np.delete(rows, out, 0), np.delete(labels, out), len(counts), instant.strength)
        start = replace(instant, weight=weight, bias=bias)
        rest = {view: np.delete(each, out, 0) for view, each in stored.items()}
        learned = learn(start, rest, np.delete(labels, out), method, seed=seed)
        before[out], after[out] = (each.logits(stored["plain"][out]) for each in (start, learned))
        if progress:
            progress(fold + 1, rounds + 1, f"Training {method}")
    held = folds >= 0
    figures = [estimate_of(logits, labels, folds, balance, len(counts)) for logits in (before, after)]
    temperature = fit_temperature(after[held], labels[held], balance[held])
    final = replace(learn(instant, stored, labels, method, seed=seed), temperature=temperature, estimate=figures[1])
    final = replace(final, held_out=(held[:, None] * softmax(after / temperature)).astype(np.float32))
    if progress:
        progress(rounds + 1, rounds + 1, f"Training {method}")
    return final, final if figures[1].balanced_accuracy > figures[0].balanced_accuracy else instant


def learn(
    instant: Instant,
    stored: Mapping[str, np.ndarray],
    labels: np.ndarray,
    method: str = "osp",
    steps: int = STEPS,
    seed: int = 0,
    lr: float = 0.003,
    batch: int = 32,
) -> Instant:
    """The instant answer with an adapter and a head that `method` has trained.

    `stored` has raw features by view: rows of the labelled images first, then those of the pile.
    """
    scale = math.sqrt(len(instant.mean))
    views = {view: (instant.inputs(rows) * scale).astype(np.float32) for view, rows in stored.items()}
    count, total = len(labels), len(views["plain"])
    nothing = np.empty(0, np.int64)
    split = Split(
        labeled=np.arange(count),
        unlabeled=np.arange(count, total),
        val=nothing,
        test=nothing,
        test_ood=nothing,
        unlabeled_is_ood=np.zeros(total - count, bool),
        id_classes=np.arange(len(instant.class_names)),
        labeled_targets=labels.astype(np.int64),
        val_targets=nothing,
        test_targets=nothing,
    )
    kind = get(method)
    wanted = {"batch": batch, "mu": 2, "lr": lr, "pretrain_lr": lr}  # far smaller rates than from scratch
    known = {name: value for name, value in wanted.items() if name in kind.Options.model_fields}
    options = decide_options(kind, "default", "cpu", "photos", known)
    plan = Plan(
        data="photos",
        labels_per_class=max(1, count // len(instant.class_names)),
        val_per_class=0,
        method=method,
        options=options.model_dump(mode="json"),
        preset="default",
        scale="cpu",
        network="adapter",
        steps=steps,
        eval_every=steps + 1,
        log_every=steps,
        bn_momentum=0.1,
        seed=seed,
        device="cpu",
        group=0,
        channels_last=False,
        versions=versions(kind.version),
    )
    task = Task(len(instant.class_names), views["plain"].shape[1:], count, total - count, 0, steps)

    def fresh(key: str) -> Method:
        torch.manual_seed(key_to_seed(seed, "weights", key))
        made = build_method(plan, task)
        with torch.no_grad():
            made.net.classifier.weight.copy_(torch.from_numpy(instant.weight / (instant.temperature * scale)))
            made.net.classifier.bias.copy_(torch.from_numpy(instant.bias / instant.temperature))
        return made

    with process_settings(plan), tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        folder.checkpoints.mkdir()
        fabric = open_fabric(plan)
        feed = Feed(FeatureViews(views, fabric.device), split, seed, fabric.device)
        loop = Loop(plan, fresh("start"), fresh, feed, None, folder, fabric, Records(folder, Silent()))
        try:
            loop.run()
        except Interrupted:  # nothing here is resumed: to the caller it is a Ctrl-C like any other
            raise KeyboardInterrupt from None
        with loop.evaluation.reported_weights():
            net = loop.method.net
            arrays = {name: value.numpy().copy() for name, value in net.encoder.state_dict().items()}
            weight, bias = (each.detach().numpy().copy() for each in (net.classifier.weight, net.classifier.bias))
    adapter = Adapter(arrays["down.weight"] * scale, arrays["down.bias"], arrays["up.weight"] / scale)
    return replace(
        instant, adapter=adapter, weight=weight * scale * instant.temperature, bias=bias * instant.temperature
    )
