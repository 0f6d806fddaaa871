"""OSP's fine-tuning step as published code takes it: what `osp bench speed` measures beside ours in a clone.

It is no part of the package. The network, the losses and the sizes are those of `osp.bench.workload`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from osp.bench.workload import Case
from osp.nets import Network, build_network
from osp.parts.matching import MatchingHead


class AsPublished:
    """The step of the published implementations, in the same network.

    Every image goes through forward and backward, weak views and the labeled ones a second time included; views are
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
