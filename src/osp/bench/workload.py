"""The steps that `osp bench speed` and `osp bench cost` measure: a method's own, and OSP's bare computation.

They train the same network on images of noise. A step of OSP, at batch B and μ, has B labeled, μB weak and μB strong
unlabeled images and the rotation task's images at four angles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osp.engine.data import random_data
from osp.engine.devices import keep_freed_memory, open_fabric
from osp.engine.loop import Loop
from osp.engine.progress import Display
from osp.engine.records import Records
from osp.engine.schedule import Timetable, refreshes
from osp.engine.train import build_loop
from osp.nets import build_network
from osp.recipe import Recipe, make_plan
from osp.runs.folder import RunFolder

DEFAULT_THREADS = torch.get_num_threads()
STEPS = 100_000
"""Length that the measured run pretends to have: it must lie somewhere in fine-tuning."""


@dataclass(frozen=True)
class Case:
    """What is trained."""

    network: str
    shape: tuple[int, int, int]
    classes: int = 6
    batch: int = 64
    mu: int = 5
    rotation: int = 64
    pool: int = 20_000

    @property
    def with_gradient(self) -> int:
        """Images that need a gradient: labeled, strong, rotated."""
        return self.batch * (1 + self.mu) + 4 * self.rotation

    @property
    def without_gradient(self) -> int:
        return self.batch * self.mu

    def changed(self, **fields: Any) -> Case:
        return replace(self, **fields)


CASES = {
    "cnn": Case("cnn", (1, 28, 28), pool=30_000),
    "wrn-28-2": Case("wrn-28-2", (3, 32, 32)),
}


class MethodStep:
    """A step of a method's last stage as `osp train` runs it: views, losses, gradients, optimizer, bookkeeping.

    The stages before it were begun and ended after one step each.
    """

    def __init__(
        self, method: str, case: Case, folder: Path, threads: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        options = {"batch": case.batch, "mu": case.mu, **(options or {})}
        plan = make_plan(Recipe(method=method, network=case.network, steps=STEPS, options=options, threads=threads))
        torch.set_num_threads(threads or DEFAULT_THREADS)
        folder.mkdir(exist_ok=True)
        keep_freed_memory()
        data = random_data(case.shape, case.classes, case.pool, folder)
        run = RunFolder(folder / "run")
        self.loop: Loop = build_loop(plan, data, run, open_fabric(plan), Records(run, Display()), None)
        self.loop.method.train()
        starts = self.loop.timetable.starts
        for start in starts:
            self.loop.at.done = start
            step = self.loop.timetable.step(start)
            self.loop.begin_stage(step)
            if step.stage.refresh is not None:
                self.refresh()
            self()
            if start != starts[-1]:
                self.loop.hook(self.loop.method.end_stage, step)

    def __call__(self) -> None:
        self.loop.advance(self.loop.timetable.step(self.loop.at.done))

    def refresh(self) -> None:
        """What the method does at its refresh interval: OSP partitions the pool and fills the bank."""
        self.loop.hook(self.loop.method.refresh, self.loop.timetable.step(self.loop.at.done))


def images_of(step: Callable[[], Any], network: nn.Module) -> dict[str, int]:
    """The images that a step puts through encoders, teachers included, with and without a graph."""
    seen = {"with gradient": 0, "without": 0}

    def count(_: nn.Module, images: tuple[Tensor, ...]) -> None:
        seen["with gradient" if torch.is_grad_enabled() else "without"] += len(images[0])

    encoders = {id(module): module for name, module in network.named_modules() if name.split(".")[-1] == "encoder"}
    handles = [encoder.register_forward_pre_hook(count) for encoder in encoders.values()]
    step()
    for handle in handles:
        handle.remove()
    return seen


class Ours(MethodStep):
    """OSP's fine-tuning step."""

    def __init__(self, case: Case, folder: Path) -> None:
        super().__init__("osp", case, folder, options={"pool_batch": case.rotation})

    def passes(self, steps: int) -> int:
        """Over the pool, in a run of this length."""
        method = self.loop.method
        asked = type(method)(method.options, method.net, replace(method.task, steps=steps))
        timetable = Timetable.make(asked.stages(), steps, seed=0)
        return sum(refreshes(timetable.step(index)) for index in range(steps))

    def parts(self) -> dict[str, Callable[[], Any]]:
        """Parts of the step that can run by themselves."""
        loop = self.loop
        step = loop.timetable.step(loop.at.done)
        batch = loop.feed.batch(step)
        network = loop.method.net
        bank: Any = loop.method.bank
        count = len(batch["labeled"].rows) + len(batch["unlabeled"].rows)
        classes = torch.arange(count) % network.num_classes
        features = torch.rand(4 * count, network.feature_dim)

        def losses() -> None:
            """Forward and backward of all that is not the encoder, which gives fixed features meanwhile."""
            network.encode = lambda images: features[: len(images)].detach().requires_grad_()  # type: ignore[method-assign]
            try:
                terms = loop.method.losses(batch, step)
                torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            finally:
                del network.encode

        def optimiser() -> None:
            for parameter in loop.parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            loop.fabric.clip_gradients(loop.method, loop.optimizer, max_norm=5.0)
            loop.optimizer.step()

        return {
            "augmentation": lambda: loop.feed.batch(step),
            "losses": losses,
            "bank": lambda: bank.sample(classes, step.generator("bank")),
            "optimiser": optimiser,
        }


class Bare:
    """The arithmetic alone: forward and backward of the images that need it, forward of the others, random tensors."""

    GROUPS = (32, 64, 128, 256, 10_000)

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.net = build_network(case.network, case.shape, case.classes).train()
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        counts = (case.with_gradient, case.without_gradient)
        noise = (torch.randn(count, *case.shape).contiguous(memory_format=torch.channels_last) for count in counts)
        self.with_gradient, self.without = noise
        self.groups = (128, 128)

    def __call__(self) -> None:
        self.forward(self.groups[0])
        self.backward(self.groups[1])

    def forward(self, group: int) -> None:
        with torch.no_grad():
            for images in torch.split(self.without, group):
                self.net(images)

    def backward(self, group: int) -> None:
        for images in torch.split(self.with_gradient, group):
            self.net(images).sum().backward()
        self.net.zero_grad(set_to_none=True)
