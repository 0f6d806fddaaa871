"""How a method is wired: which loss term reaches which module, on a network with batch norm and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from helpers import pools
from osp.engine.schedule import Timetable
from osp.methods import Batch, Method, Sample, Stage, Step, Task, get
from osp.nets import BATCH_NORMS, Network

CLASSES, LABELED, POOL, VALIDATION, STEPS = 4, 12, 40, 12, 100


def build(name: str, dropout: float = 0.0, num_val: int = VALIDATION, **options: Any) -> Any:
    """A method for grey images of 8x8, in training mode, on a small network with batch norm.

    What batch norms remember is not what any batch of these tests has, so that predictions by the one and by the other
    differ; predictions are as sure as those of a trained network.
    """
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.ReLU())
    network = Network(layers, 16, CLASSES, dropout)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean += torch.tensor([1.0, -0.5, 0.3, -1.0])
    norm.running_var *= torch.tensor([0.3, 2.0, 1.5, 0.5])
    kind = get(name)
    task = Task(CLASSES, (1, 8, 8), LABELED, POOL, num_val, STEPS)
    method = kind(kind.Options.model_validate(options), network, task)
    with torch.no_grad():
        for parameter in [*network.classifier.parameters()][-2:]:
            parameter.mul_(3.0)
    return method.train()


def images(n: int, seed: int) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def batch_for(method: Method, stage: str, size: int = 12) -> dict[str, Sample]:
    """Random images for every stream of the stage."""
    found: dict[str, Sample] = {}
    for number, (name, spec) in enumerate(method.streams(stage_named(method, stage)).items()):
        views = {view: images(size, 100 * number + place) for place, view in enumerate(spec.views)}
        rows = torch.arange(size)
        labels = None
        if spec.part == "labeled":
            labels = rows % CLASSES
        elif spec.part == "joint":
            rows = torch.arange(size) + LABELED // 2
            labels = torch.where(rows < LABELED, rows % CLASSES, -1)
        found[name] = Sample(rows, views, labels)
    return found


def stage_named(method: Method, name: str) -> Stage:
    return next(stage for stage in method.stages() if stage.name == name)


def step_in(method: Method, stage: str, progress: float = 0.5, steps: int = STEPS) -> Step:
    """A step of this stage of a run of so many steps."""
    table = Timetable.make(method.stages(), steps, seed=0)
    number = [each.name for each in table.stages].index(stage)
    start = table.step(table.starts[number])
    return table.step(table.starts[number] + int(progress * start.stage_steps))


def reached(method: Any, stage: str, progress: float = 0.5, batch: Batch | None = None) -> dict[str, set[str]]:
    """For each loss term of the stage: the modules whose every weight matrix gets a gradient from it.

    A module of which only some do is named with a question mark.
    """
    modules = {"encoder": method.net.encoder, "classifier": method.net.classifier}
    modules |= {name: module for name, module in method.named_children() if name not in ("net", "own_score")}
    modules |= dict(method.own_score.named_children())
    modules = {name: module for name, module in modules.items() if [*module.parameters()]}
    step = step_in(method, stage, progress)
    terms = method.losses(batch or batch_for(method, stage), step)
    found: dict[str, set[str]] = {}
    for term, loss in terms.items():
        found[term] = set()
        for name, module in modules.items():
            weights = [each for each in module.parameters() if each.requires_grad and each.ndim > 1]
            slopes = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True) if weights else ()
            learning = [slope is not None and bool(slope.any()) for slope in slopes]
            if any(learning):
                found[term].add(name if all(learning) else f"{name}?")
    return found


def published(name: str, data: str = "cifar10") -> dict[str, Any]:
    """The values of the paper preset for a data set."""
    return {key: entry.value_for(data) for key, entry in get(name).paper.items()}


def joint_logits(method: Any, *views: Tensor) -> tuple[Tensor, ...]:
    """Of views that go through the network in one pass, in training mode; batch norms forget it again."""
    norms = [layer for layer in method.net.modules() if isinstance(layer, BATCH_NORMS)]
    before = [{key: value.clone() for key, value in layer.state_dict().items()} for layer in norms]
    found = torch.split(method.net(torch.cat(views)).detach(), [len(view) for view in views])
    for layer, state in zip(norms, before, strict=True):
        layer.load_state_dict(state)
    return found


def tested_logits(method: Any, views: Tensor) -> Tensor:
    """As the tested network gives them: running statistics, no dropout."""
    method.net.eval()
    with torch.no_grad():
        logits: Tensor = method.net(views)
    method.net.train()
    return logits


class FakePool(pools.FakePool):
    """Random images; labels go round."""

    def __init__(self, method: Method | None = None) -> None:
        sizes = {"labeled": LABELED, "unlabeled": POOL, "val": VALIDATION}
        parts = {part: images(size, 900 + number) for number, (part, size) in enumerate(sizes.items())}
        parts["joint"] = torch.cat([parts["labeled"], parts["unlabeled"]])
        super().__init__(parts, {part: torch.arange(len(each)) % CLASSES for part, each in parts.items()}, method)
