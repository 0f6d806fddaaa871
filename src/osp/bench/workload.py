"""The step that `osp bench speed` measures, in three forms: ours, its bare computation, and as published code does it.

All three train the same network on images of noise. Per step, at batch B and μ: B labelled, μB weak and μB strong
unlabelled images and the rotation task's images at four angles.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from osp.engine.data import random_data
from osp.engine.devices import keep_freed_memory, open_fabric
from osp.engine.loop import Loop
from osp.engine.progress import Silent
from osp.engine.records import Records
from osp.engine.schedule import Timetable, refreshes
from osp.engine.train import build_loop
from osp.nets import Network, build_network
from osp.parts.matching import MatchingHead
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
        """Images that need a gradient: labelled, strong, rotated."""
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
    """A step of a method's last stage as `osp train` runs it: views, losses, gradients, optimiser, book-keeping.

    The stages before it were begun and ended after one step each.
    """

    def __init__(
        self, method: str, case: Case, folder: Path, threads: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        options = {"batch": case.batch, "mu": case.mu, **(options or {})}
        plan = make_plan(Recipe(method=method, network=case.network, steps=STEPS, options=options, threads=threads))
        torch.set_num_threads(threads or DEFAULT_THREADS)
        keep_freed_memory()
        data = random_data(case.shape, case.classes, case.pool, folder)
        run = RunFolder(folder / "run")
        self.loop: Loop = build_loop(plan, data, run, open_fabric(plan), Records(run, Silent()), None)
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
        self.with_gradient = noise(case.with_gradient, case.shape)
        self.without = noise(case.without_gradient, case.shape)
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


def noise(rows: int, shape: tuple[int, int, int]) -> Tensor:
    return torch.randn(rows, *shape).contiguous(memory_format=torch.channels_last)


class AsPublished:
    """The step of the published implementations, in the same network.

    Every image goes through forward and backward, weak views and the labelled ones a second time included; views are
    made image by image with Pillow, in two loader processes that work ahead; negatives and partners are found sample by
    sample. Its losses are those of OSP.
    """

    ALPHA, DELTA, TEMPERATURE, THRESHOLD = 0.8, 0.8, 0.4, 0.8

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.net: Network = build_network(case.network, case.shape, case.classes).train()
        self.rotation_head = nn.Linear(self.net.feature_dim, 4)
        self.matching = MatchingHead(self.net.feature_dim, case.classes)
        modules = nn.ModuleList([self.net, self.rotation_head, self.matching])
        self.optimizer = torch.optim.SGD(modules.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=5e-4)
        self.bank = {c: [torch.rand(self.net.feature_dim) for _ in range(50)] for c in range(case.classes)}
        loader = DataLoader(PillowViews(case), batch_size=None, num_workers=2, persistent_workers=True)
        self.batches = iter(loader)

    def __call__(self) -> None:
        labeled, targets, weak, strong, rotated = next(self.batches)
        first = self.net.encode(torch.cat([labeled, weak]))
        logits = self.net.classifier(first)
        labeled_logits, weak_logits = logits[: len(labeled)], logits[len(labeled) :].detach()
        again = self.net.encode(labeled)
        strong_features = self.net.encode(strong)
        pool = self.net.encode(torch.cat([torch.rot90(rotated, k, (2, 3)) for k in range(4)]))
        angles = torch.arange(4).repeat_interleave(len(rotated))
        loss = F.cross_entropy(labeled_logits, targets) + F.cross_entropy(self.rotation_head(pool), angles)
        loss = loss + self.labeled_matching(first[: len(labeled)], labeled_logits, targets)
        loss = loss + self.unlabeled_matching(pool[: len(rotated)])
        loss = loss + self.divergence(weak_logits, self.net.classifier(strong_features))
        loss = loss + F.cross_entropy(self.net.classifier(self.pruned(again, targets)), targets)
        predicted = weak_logits.argmax(dim=1)
        loss = loss + self.divergence(weak_logits, self.net.classifier(self.pruned(strong_features, predicted)))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def divergence(self, weak_logits: Tensor, logits: Tensor) -> Tensor:
        target = (weak_logits / self.TEMPERATURE).softmax(dim=1)
        mask = weak_logits.softmax(dim=1).amax(dim=1) >= self.THRESHOLD
        each = F.kl_div(logits.log_softmax(dim=1), target, reduction="none").sum(dim=1)
        return (each * mask).sum() / mask.sum().clamp(min=1)

    def pruned(self, features: Tensor, classes: Tensor) -> Tensor:
        rows = []
        for i in range(len(features)):
            partner = random.choice(self.bank[int(classes[i].item())])
            share = (features[i] * partner).sum() / (partner * partner).sum()
            rows.append(features[i] - self.ALPHA * share * partner)
        return torch.stack(rows)

    def labeled_matching(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        hard, easy = [], []
        for i in range(len(features)):
            order = logits[i].detach().argsort(descending=True).tolist()
            others = [c for c in order if c != targets[i].item()]
            hard.append(others[0])
            easy.append(random.choice(others[1:]))
        classes = torch.cat([targets, torch.tensor(hard), torch.tensor(easy)])
        wanted = torch.cat([torch.ones(len(targets)), torch.zeros(2 * len(targets))])
        return F.binary_cross_entropy_with_logits(self.matching(features, classes), wanted)

    def unlabeled_matching(self, features: Tensor) -> Tensor:
        predicted = self.net.classifier(features).argmax(dim=1)
        others = []
        for i in range(len(features)):
            others.append(random.choice([c for c in range(self.case.classes) if c != predicted[i].item()]))
        pairs = torch.sigmoid(self.matching(features, torch.cat([predicted, torch.tensor(others)])))
        return F.binary_cross_entropy(pairs, pairs)


class PillowViews(Dataset[tuple[Tensor, ...]]):
    """A step's views, made image by image: what the loaders of published code do, one item a step."""

    def __init__(self, case: Case) -> None:
        self.case = case
        channels, height, width = case.shape
        shape = (512, height, width) if channels == 1 else (512, height, width, channels)
        self.images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        self.pad = height // 8

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, step: int) -> tuple[Tensor, ...]:
        case, count = self.case, self.case.batch * self.case.mu
        labeled = self.views(case.batch, self.weak)
        targets = torch.from_numpy(np.random.default_rng(step).integers(0, case.classes, case.batch))
        return (
            labeled,
            targets,
            self.views(count, self.weak),
            self.views(count, self.strong),
            self.views(case.rotation, self.weak),
        )

    def views(self, count: int, view: Callable[[Image.Image], Image.Image]) -> Tensor:
        found = [self.tensor(view(Image.fromarray(random.choice(self.images)))) for _ in range(count)]
        return torch.stack(found)

    @staticmethod
    def tensor(image: Image.Image) -> Tensor:
        array = np.asarray(image)
        pixels = torch.from_numpy((array[None] if array.ndim == 2 else array.transpose(2, 0, 1)).copy())
        return pixels.float().div_(255).sub_(0.5).div_(0.5)

    def weak(self, image: Image.Image) -> Image.Image:
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        array, pad = np.asarray(image), self.pad
        padded = np.pad(array, ((pad, pad), (pad, pad), (0, 0))[: array.ndim], mode="reflect")
        top, left = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
        return Image.fromarray(padded[top : top + array.shape[0], left : left + array.shape[1]])

    def strong(self, image: Image.Image) -> Image.Image:
        image = self.weak(image)
        for operation in random.choices(PILLOW_OPERATIONS, k=2):
            if random.random() < 0.5:
                image = operation(image, random.randint(1, 9))
        if image.mode == "RGB":
            array, side = np.array(image), image.width // 2
            top, left = (random.randint(-side // 2, image.width - side // 2) for _ in range(2))
            array[max(top, 0) : top + side, max(left, 0) : left + side] = 127
            image = Image.fromarray(array)
        return image


def _signed(value: float) -> float:
    return value if random.random() < 0.5 else -value


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PILLOW_OPERATIONS: tuple[Callable[[Image.Image, int], Image.Image], ...] = (
    lambda image, v: ImageOps.autocontrast(image),
    lambda image, v: ImageEnhance.Brightness(image).enhance(v * 0.09 + 0.05),
    lambda image, v: ImageEnhance.Color(image).enhance(v * 0.09 + 0.05),
    lambda image, v: ImageEnhance.Contrast(image).enhance(v * 0.09 + 0.05),
    lambda image, v: ImageOps.equalize(image),
    lambda image, v: image,
    lambda image, v: ImageOps.posterize(image, int(v * 0.4) + 4),
    lambda image, v: image.rotate(_signed(3 * v)),
    lambda image, v: ImageEnhance.Sharpness(image).enhance(v * 0.09 + 0.05),
    lambda image, v: _affine(image, 1, _signed(0.03 * v), 0, 0, 1, 0),
    lambda image, v: _affine(image, 1, 0, 0, _signed(0.03 * v), 1, 0),
    lambda image, v: ImageOps.solarize(image, 256 - int(25.6 * v)),
    lambda image, v: _affine(image, 1, 0, _signed(0.03 * v) * image.width, 0, 1, 0),
    lambda image, v: _affine(image, 1, 0, 0, 0, 1, _signed(0.03 * v) * image.height),
)
"""FixMatch's fourteen, at level v of 10."""

FORMS: dict[str, Callable[[Case, Path], Callable[[], None]]] = {
    "ours": Ours,
    "bare": lambda case, folder: Bare(case),
    "as published": lambda case, folder: AsPublished(case),
}
"""The forms by name, for a case and a folder that may be written in."""
