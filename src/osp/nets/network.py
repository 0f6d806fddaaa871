"""A network = encoder + classifier, and the batch-norm and dropout details that semi-supervised methods care about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from osp import distributed
from osp.errors import UserError
from osp.nets.batchnorm import BATCH_NORMS, set_slot
from osp.nets.registry import Shape, build_encoder, check_name
from osp.randomness import generator


class StepDropout(nn.Module):
    """Dropout whose mask is a function of (seed, step) for the global batch, like every other draw.

    The engine calls `set_step` before each step; rank r of w keeps rows [r::w] of the mask for the global batch, so
    runs resumed or spread over devices see the same masks.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.set_step(0, 0)

    def set_step(self, seed: int, step: int, rank: int = 0, world: int = 1) -> None:
        self._draws = generator(seed, step, "dropout")
        self._rank, self._world = rank, world

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return features
        rows, columns = features.shape
        drawn = _random_16_bits((rows * self._world, columns), self._draws)
        kept = drawn[self._rank :: self._world].to(features.device, non_blocking=True) >= int(self.rate * 2**16) - 2**15
        return features * kept.to(features.dtype).div_(1 - self.rate)


def _random_16_bits(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Uniform int16; four of them from each draw of 64 bits, which costs a quarter."""
    count = shape[0] * shape[1]
    drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return drawn.view(torch.int16)[:count].view(shape)


class Network(nn.Module):
    """Encoder G and classifier F: `encode` gives features z = G(x), `classify` logits F(z), calling it both.

    `group`: in training, and in `encode_as_tested`, more images than this go through the encoder in several passes of
    equal size, because on a CPU the maps of a large batch do not stay in its caches. Each pass takes every n-th image,
    so that all see the same mixture of views; batch norms then normalize by the statistics of their pass. None is one
    pass for all.
    """

    group: int | None = None

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        num_classes: int,
        dropout: float = 0.0,
        cam_layer: str | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self._cam_layer = cam_layer
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.dropout = StepDropout(dropout)
        self.classifier = nn.Linear(feature_dim, num_classes)
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def encode(self, images: Tensor) -> Tensor:
        """Features of images, of which a process among several holds rows rank, rank + world, ... of the global batch.

        With g the greatest common divisor of passes and processes, a process has rows in every g-th pass alone. So g
        passes are under way at once, each shared by world / g processes, and all are busy all the time.
        """
        rank, world = distributed.rank(), distributed.world()
        everyone = len(images) * world
        if self.group is None or not self.training or everyone <= self.group:
            features: Tensor = self.encoder(images)
            return features
        passes = -(-everyone // self.group)
        slots = math.gcd(passes, world)
        slot, own = rank % slots, passes // slots
        found: list[Tensor] = [images] * own
        try:
            set_slot(self.encoder, slot, slots)
            for number in range(own):
                # Row i is in pass slot + number · slots if that is rank + i · world modulo the passes.
                start = (number - rank // slots) * pow(world // slots, -1, own) % own
                found[start] = self.encoder(images[start::own])
        finally:
            set_slot(self.encoder)
        if len(images) % own == 0:
            return torch.stack(found, dim=1).flatten(0, 1)  # half the cost of an index, whose backward pass scatters
        return torch.cat(found)[dealt_back(len(images), own).to(images.device, non_blocking=True)]

    def encode_as_tested(self, images: Tensor) -> Tensor:
        """Features as the tested network gives them, without a graph: batch norms use their running statistics.

        For targets, such as pseudo-labels. Labeled images are normalized together with other views in training, and
        weak views alone would be normalized by other statistics than those that the classifier has learned with
        (docs/networks.md).
        """
        with as_tested(self.encoder):
            return self.encode(images)

    def classify(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(features))
        return logits

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.encode(images))

    def cam_layer(self) -> nn.Module | None:
        """The layer that Grad-CAM looks at: the one the network names, else its last convolution; None without one."""
        if self._cam_layer is not None:
            return self.encoder.get_submodule(self._cam_layer)
        convolutions = [layer for layer in self.encoder.modules() if isinstance(layer, nn.Conv2d)]
        return convolutions[-1] if convolutions else None

    def encode_with_maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features and what the Grad-CAM layer gave on the way to them (N×C×H×W), all in one pass.

        With a graph, `torch.autograd.grad(logits.sum(), maps)` of logits made from these features is what Grad-CAM
        weights the maps by (Selvaraju et al. 2017).
        """
        layer = self.cam_layer()
        if layer is None:
            raise UserError("Grad-CAM: this network has no layer of maps to look at.")
        return with_places(self.encoder, layer, images)


def with_places(module: nn.Module, layer: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """What a module gives, and what a layer of it gave on the way: there the graph begins if the weights are frozen."""
    seen: list[Tensor] = []

    def look(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        seen.append(output if output.requires_grad else output.detach().requires_grad_())
        return seen[-1]

    hook = layer.register_forward_hook(look)
    try:
        with torch.enable_grad():
            features: Tensor = module(images)
    finally:
        hook.remove()
    return features, seen[-1]


def dealt_back(rows: int, passes: int) -> Tensor:
    """Where each row lies after rows 0, n, 2n, ..., then 1, n + 1, ... were laid one behind the other.

    >>> dealt_back(5, 2).tolist()  # laid out as 0 2 4 1 3
    [0, 3, 1, 4, 2]
    """
    return torch.cat([torch.arange(number, rows, passes) for number in range(passes)]).argsort()


def build_network(name: str | nn.Module, shape: Shape, num_classes: int) -> Network:
    """The network of this name for inputs of this shape: images (channels, height, width) or stored features (D,).

    `name` may be a torch module of the user's own: anything that turns N inputs into N×D features.
    """
    if len(shape) not in (1, 3):
        raise ValueError(f"shape={shape}: channels, height and width of an image, or the length of a feature vector")
    if len(shape) == 3 and min(shape[1:]) < 8:
        raise UserError(f"Images are {shape[2]}x{shape[1]}; the networks need at least 8x8. Set a larger image size.")
    if isinstance(name, str):
        spec, encoder = check_name(name), build_encoder(name, shape)
        dropout, cam_layer = spec.feature_dropout, spec.cam_layer
    else:
        encoder, dropout, cam_layer = name, getattr(name, "feature_dropout", 0.0), None
    return Network(encoder, probe_feature_dim(encoder, shape), num_classes, dropout, cam_layer)


def probe_feature_dim(encoder: nn.Module, shape: Shape) -> int:
    """Run two blank inputs through a module to learn its feature size."""
    inputs = "images" if len(shape) == 3 else "features"
    try:
        with as_tested(encoder):
            features = encoder(torch.zeros(2, *shape))
    except Exception as error:
        raise UserError(f"The network does not accept {inputs} of shape {shape}: {error}") from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"The network must turn 2 {inputs} into 2 feature vectors (2×D); it gave {got}.")
    return features.shape[1]


def set_batchnorm_momentum(module: nn.Module, momentum: float) -> None:
    """How fast running statistics follow (PyTorch's meaning: the weight of the new batch).

    A layer with the attribute `own_momentum` keeps its own.
    """
    for layer in module.modules():
        if isinstance(layer, BATCH_NORMS) and not getattr(layer, "own_momentum", False):
            layer.momentum = momentum


def batchnorm_momentum(steps: int) -> float:
    """0.001, the field's value, for long runs; more for short ones, whose statistics would stay near (0, 1).

    50 / steps makes the initial values weigh less than one per cent after a tenth of the run.

    >>> batchnorm_momentum(250_000), batchnorm_momentum(5_000), batchnorm_momentum(100)
    (0.001, 0.01, 0.1)
    """
    return min(0.1, max(0.001, 50 / max(steps, 1)))


@contextmanager
def as_tested(module: nn.Module) -> Iterator[None]:
    """Inside, the module is in evaluation mode and no graph is kept; afterwards each part is in the mode it had."""
    modes = [(each, each.training) for each in module.modules()]  # a teacher inside may be in eval mode for good
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for each, training in modes:
            each.training = training


@contextmanager
def frozen_batchnorm_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, training-mode batch norms normalize by the batch as ever but leave their running statistics alone."""
    layers = [layer for layer in module.modules() if isinstance(layer, BATCH_NORMS) and layer.track_running_stats]
    saved = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, saved, strict=True):
            layer.momentum = momentum
