"""Runs of seconds on the embedded digits, and what is left of them."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers.runs import weights
from osp import Recipe
from osp.runs.folder import RunFolder

STEPS = 16
"""Of the fixture `short_run`. The method that uses everything has stages of 4, 8 and 4 of them, refreshed at 4, 6, 9,
11, 12 and 14."""


def small(method: str = "supervised", steps: int = 12, **fields: Any) -> Recipe:
    """A recipe that takes a fraction of a second; on one thread, as these batches are too small for two."""
    options = {"batch": 8, "mu": 2, **fields.pop("options", {})}
    if method == "supervised":
        options.pop("mu")
    defaults = {"scale": "demo", "threads": 1, "eval_every": 9, "log_every": 3}
    return Recipe(method=method, steps=steps, options=options, **{**defaults, **fields})


def result(path: Path) -> dict[str, Any]:
    found = RunFolder(path).read_result()
    assert found is not None
    return {key: value for key, value in found.items() if key != "seconds"}


def assert_same_run(one: Path, other: Path) -> None:
    """The same weights and state bit for bit, the same numbers in every file."""
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different
    assert result(one) == result(other)
    assert RunFolder(one).metrics.read_bytes() == RunFolder(other).metrics.read_bytes()


class TiedNet(nn.Module):
    """A user's own network in which two layers share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.second(torch.relu(self.first(images.flatten(1))))
        return torch.relu(hidden)


EVERYTHING = textwrap.dedent(
    '''
    """A method that uses every contract of the base at once, as the methods of the field do one by one."""

    import torch
    import torch.nn.functional as F
    from torch import nn

    from osp.methods import ExtraOptimizer, Method, Options, StreamSpec


    class EverythingOptions(Options):
        ema: float | None = 0.9
        refresh: float = 0.3


    class Everything(Method):
        Options = EverythingOptions
        mechanism = ("kept", "moved", "never")

        def __init__(self, options, network, task):
            super().__init__(options, network, task)
            self.weight_net = nn.Sequential(nn.Linear(task.num_classes, 5), nn.ReLU(), nn.Linear(5, 1), nn.Sigmoid())
            self.teacher = nn.Linear(network.feature_dim, task.num_classes).requires_grad_(False)
            self.register_buffer("accumulated", torch.zeros(task.num_labeled + task.num_unlabeled, task.num_classes))
            self.register_buffer("pseudo", torch.full((task.num_unlabeled,), -1))
            self.register_buffer("keep", torch.ones(task.num_unlabeled, dtype=torch.bool))
            self.register_buffer("bank", torch.zeros(0, network.feature_dim))
            self.register_buffer("hooks", torch.zeros(4, dtype=torch.int64))  # begin, refresh, end, after_step

        def stages(self):
            warm = self.stage(name="warm", share=1, optimizer="adam", lr=1e-3, schedule="constant")
            main = self.stage(name="main", share=2, fresh=True, refresh=self.options.refresh, schedule="steps",
                              drops=(0.5,), decay_all=True)
            last = self.stage(name="last", share=1, optimizer="adamw", lr=2e-3, schedule="cosine", refresh=0.5)
            return [warm, main, last]

        def streams(self, stage):
            batch = self.options.batch
            streams = {"labeled": StreamSpec("labeled", batch, ("weak",))}
            if stage.name != "warm":
                streams["joint"] = StreamSpec("joint", batch, ("weak", "weak2"))
                streams["unlabeled"] = StreamSpec("unlabeled", 2 * batch, ("weak", "strong"))
            return streams

        def extra_optimizers(self):
            return {"weights": ExtraOptimizer(self.weight_net.parameters(), lr=1e-2)}

        def consistency(self, batch, weights):
            target = self.net(batch["joint"]["weak"]).softmax(1).detach()
            gap = (self.net(batch["joint"]["weak2"]).softmax(1) - target).square().mean(1)
            return (weights * gap).sum() / weights.sum()

        def extra_losses(self, batch, step):
            if "joint" not in batch:
                return {}
            # One virtual step of the classifier, as DS3L has it: the outer loss reaches the weights through it.
            probabilities = self.net(batch["joint"]["weak"]).softmax(1)
            inner = self.consistency(batch, self.weight_net(probabilities).squeeze(1))
            classifier = self.net.classifier
            (gradient,) = torch.autograd.grad(inner, [classifier.weight], create_graph=True)
            features = self.net.encode(batch["labeled"]["weak"])
            logits = F.linear(features, classifier.weight - 0.1 * gradient, classifier.bias)
            return {"weights": F.cross_entropy(logits, batch["labeled"].targets)}

        def losses(self, batch, step):
            labeled = batch["labeled"]
            noise = torch.rand(len(labeled.rows), generator=step.generator("noise"))
            each = F.cross_entropy(self.net(labeled["weak"]), labeled.targets, reduction="none")
            terms = {"ce": (noise * each).mean()}
            if "joint" in batch:
                with torch.no_grad():
                    weights = self.weight_net(self.net(batch["joint"]["weak"]).softmax(1)).squeeze(1)
                terms["consistency"] = step.sigmoid_ramp(0.5) * self.consistency(batch, weights)
                unlabeled = batch["unlabeled"]
                targets = self.pseudo[unlabeled.rows]
                terms["pseudo"] = step.linear_ramp(0.5) * F.cross_entropy(self.net(unlabeled["strong"]), targets)
                assert self.keep[unlabeled.rows].all(), "a batch holds what the refresh left out"
                assert labeled.targets.min() >= 0 and unlabeled.labels is None
            self.log("never", 0.0)
            return terms

        def begin_stage(self, step, pool):
            self.hooks[0] += 1
            self.teacher.load_state_dict(self.net.classifier.state_dict())
            if step.stage_index > 0:
                self.log("moved", 1.0)
                (self.pseudo,) = pool.map(lambda images: self.net(images).argmax(1), ema=True)

        def refresh(self, step, pool):
            self.hooks[1] += 1
            features, confidence = pool.map(self.score)
            keep = confidence > confidence.median()
            pool.restrict("unlabeled", keep.nonzero().squeeze(1))
            pool.restrict("joint", torch.cat([torch.arange(len(pool.labels("labeled"))),
                                              self.task.num_labeled + keep.nonzero().squeeze(1)]))
            self.keep.copy_(keep)
            self.bank = torch.cat([self.bank, features[~keep][:3]])
            self.log("kept", keep.float().mean())

        def score(self, images):
            features = self.net.encode(images)
            return features, self.teacher(features).softmax(1).amax(1)

        def end_stage(self, step, pool):
            self.hooks[2] += 1
            (self.pseudo,) = pool.map(lambda images: self.net(images).argmax(1))

        def after_step(self, batch, step):
            self.hooks[3] += 1
            if "joint" in batch:
                with torch.no_grad():
                    self.accumulated[batch["joint"].rows] += self.weight_net[0].weight.sum()

        def kept(self):
            return self.keep
    '''
)
"""Curriculum Labeling's fresh cycles and pseudo labels, DS3L's weighting network, MTC's accumulator over the joint set,
Safe-Student's teacher, a bank that grows: the source of a method file."""


def everything(folder: Path) -> str:
    """The path of the file of the method that uses every contract."""
    path = folder / "everything.py"
    path.write_text(EVERYTHING, encoding="utf-8")
    return str(path)
