"""From the instant answer on: a method of the engine trains a residual adapter on stored features.

The network starts as the instant answer (`osp.nets.adapter`: zero at the start, its classifier the instant head divided
by the temperature), so step 0 says what the instant answer says. Inputs are the instant head's own, sqrt(D) times as
long, so that each has a variance of one as networks like it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osp.data.source import Progress
from osp.data.split import Split
from osp.data.view_source import FeatureViews
from osp.engine.batches import Feed
from osp.engine.devices import open_fabric, process_settings
from osp.engine.loop import Loop
from osp.engine.progress import Display
from osp.engine.records import Records
from osp.engine.signals import Interrupted
from osp.engine.train import build_method
from osp.errors import UserError
from osp.evaluate.estimates import estimate_of
from osp.evaluate.metrics import softmax
from osp.evaluate.thresholds import fit_temperature
from osp.methods import get
from osp.methods.base import Method, Task
from osp.models.instant import Adapter as Learned
from osp.models.instant import Instant
from osp.nets.adapter import Adapter
from osp.nets.pretrained import Backbone
from osp.photos.features import VIEWS, compute
from osp.photos.instant import fit_head, folds_for
from osp.photos.photographs import Photographs
from osp.randomness import key_to_seed
from osp.recipe.deciding import decide_options, versions
from osp.recipe.plan import Plan
from osp.runs.folder import RunFolder

STEPS = 60
"""A second or two of one core for each training; 150 gave no better accuracy."""
MOST = 4096
"""Photos of the pile that are trained on: bounds time and memory, however large the pile."""
BANK = 512
"""Features per class in the bank of OSP: the published 5,000 would be 25 MB for each class."""


@dataclass(frozen=True)
class Ground:
    """What is trained on: the head's inputs by view, sqrt(D) times as long, rows of the labeled images first."""

    views: Mapping[str, np.ndarray]
    labels: np.ndarray
    id_share: float
    """Of the pile, estimated from the scores of labeled images that were held out; 0 where none could be."""

    @classmethod
    def of(cls, instant: Instant, stored: Mapping[str, np.ndarray], labels: np.ndarray) -> Ground:
        """From raw features by view, which may be memory-mapped and in half precision."""
        scale = math.sqrt(len(instant.mean))
        views = {view: (instant.inputs(rows) * scale).astype(np.float32) for view, rows in stored.items()}
        pile = stored["plain"][len(labels) :]
        share = instant.share(instant.ood_score(pile)) if len(instant.id_scores) and len(pile) else 0.0
        return cls(views, labels.astype(np.int64), share)


def views_for(method: str, classes: int) -> tuple[str, ...]:
    """The views whose features a method draws from: the plain one, and all that are stored of each that it names."""
    kind = get(method)
    kind.check_shape((Adapter.LEAST,))
    made = build_method(_plan(kind, method, 1, 1, {}), Task(classes, (Adapter.LEAST,), 1, 1, 0))
    named = {view for stage in made.stages() for spec in made.streams(stage).values() for view in spec.views}
    bases = {"plain", *(view.rstrip("2") for view in named)}
    return tuple(view for view in VIEWS if view.rstrip("2") in bases)


def improve_on(
    instant: Instant,
    photos: Photographs,
    network: Backbone,
    method: str,
    seed: int,
    person: bool,
    progress: Progress | None,
) -> tuple[Instant | None, Instant]:
    """The instant answer trained further on the views that the method draws from, and the better of both."""
    chosen = np.random.default_rng(seed).permutation(len(photos.pile_use))[:MOST]
    pile = photos.pile_use[np.sort(chosen)]
    files = [*(photos.labeled.files[i] for i in photos.use), *(photos.pile.files[i] for i in pile)]
    views = views_for(method, len(photos.classes))
    features = compute(files, network, views, progress)
    if len(features) < len(files):
        raise UserError(f"{features.unreadable[0][0]} has changed since it was read first. Start the fit again.")
    stored = {view: features.rows(view=view) for view in views}
    return improve(instant, stored, photos.labels[photos.use], method, seed, progress, person)


def improve(
    instant: Instant,
    stored: Mapping[str, np.ndarray],
    labels: np.ndarray,
    method: str = "osp",
    seed: int = 0,
    progress: Progress | None = None,
    asked_person: bool = False,
) -> tuple[Instant | None, Instant]:
    """What `method` makes of the instant answer with figures of its own, and the better of the two.

    Both are cross-validated on the same folds; only a larger balanced accuracy counts as better. Nothing is tried where
    no image can be held out or the pile is empty.
    """
    counts = np.bincount(labels, minlength=len(instant.class_names))
    folds = folds_for(stored["plain"][: len(labels)], labels, counts, seed, asked_person)
    if folds.max() < 0 or len(stored["plain"]) == len(labels):
        return None, instant
    balance = 1 / (len(counts) * counts[labels])
    before, after = (np.zeros((len(labels), len(counts))) for _ in range(2))
    rows, rounds = instant.center(stored["plain"][: len(labels)]), int(folds.max()) + 1
    ground = Ground.of(instant, stored, labels)
    for fold in range(rounds):
        out, rest = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        weight, bias = fit_head(rows[rest], labels[rest], len(counts), instant.strength)
        start = replace(instant, weight=weight, bias=bias)
        learned = learn(start, ground, method, rest, seed=seed)
        before[out], after[out] = (each.logits(stored["plain"][out]) for each in (start, learned))
        if progress:
            progress(fold + 1, rounds + 1, f"Training {method}")
    held = folds >= 0
    figures = [estimate_of(logits, labels, folds, balance, len(counts)) for logits in (before, after)]
    temperature = fit_temperature(after[held], labels[held], balance[held])
    final = replace(learn(instant, ground, method, seed=seed), temperature=temperature, estimate=figures[1])
    final = replace(final, held_out=(held[:, None] * softmax(after / temperature)).astype(np.float32))
    if progress:
        progress(rounds + 1, rounds + 1, f"Training {method}")
    return final, final if figures[1].balanced_accuracy > figures[0].balanced_accuracy else instant


def learn(
    instant: Instant,
    ground: Ground,
    method: str = "osp",
    rows: np.ndarray | None = None,
    steps: int = STEPS,
    seed: int = 0,
    **options: Any,
) -> Instant:
    """The instant answer with an adapter and a head that `method` has trained, on these labeled rows (all of them).

    `options` are the method's; where they are silent, rates and batches are far smaller than from scratch.
    """
    scale = math.sqrt(len(instant.mean))
    count, total = len(ground.labels), len(ground.views["plain"])
    rows = np.arange(count) if rows is None else rows
    nothing = np.empty(0, np.int64)
    split = Split(
        labeled=rows,
        unlabeled=np.arange(count, total),
        val=nothing,
        test=nothing,
        test_ood=nothing,
        unlabeled_is_ood=np.zeros(total - count, bool),
        id_classes=np.arange(len(instant.class_names)),
        labeled_targets=ground.labels[rows],
        val_targets=nothing,
        test_targets=nothing,
    )
    plan = _plan(get(method), method, steps, max(1, len(rows) // len(instant.class_names)), options, seed)
    shape = ground.views["plain"].shape[1:]
    task = Task(len(instant.class_names), shape, len(rows), total - count, 0, steps, ground.id_share)

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
        feed = Feed(FeatureViews(ground.views, fabric.device), split, seed, fabric.device)
        loop = Loop(plan, fresh("start"), fresh, feed, None, folder, fabric, Records(folder, Display()))
        try:
            loop.run()
        except Interrupted:  # nothing here is resumed: to the caller it is a Ctrl-C like any other
            raise KeyboardInterrupt from None
        with loop.averaged.applied():
            net = loop.method.net
            arrays = {name: value.numpy().copy() for name, value in net.encoder.state_dict().items()}
            weight, bias = (each.detach().numpy().copy() for each in (net.classifier.weight, net.classifier.bias))
    adapter = Learned(arrays["down.weight"] * scale, arrays["down.bias"], arrays["up.weight"] / scale)
    return replace(
        instant, adapter=adapter, weight=weight * scale * instant.temperature, bias=bias * instant.temperature
    )


def _plan(kind: type[Method], method: str, steps: int, labels: int, options: Mapping[str, Any], seed: int = 0) -> Plan:
    wanted = {"batch": 32, "mu": 2, "lr": 0.001, "pretrain_lr": 0.001, "bank_capacity": BANK, **options}
    known = {name: value for name, value in wanted.items() if name in kind.Options.model_fields}
    return Plan(
        data="photos",
        labels_per_class=labels,
        val_per_class=0,
        method=method,
        options=decide_options(kind, "v0.1", "photos", {}, known).model_dump(mode="json"),
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
