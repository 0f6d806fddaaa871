"""What a view is, and the `Augmenter` that makes them: uint8 images of a whole batch in, normalized float32 out.

What is random is drawn on the CPU into a `Plan`, for the global batch, and applied on the device of the images. Views
are found by name: one file each in this folder, an installed package's entry point (group `osp.views`), or a path.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from osp.errors import UserError, suggest
from osp.plugins import Plugins, only_class

Draws = Mapping[str, Tensor]
"""The random numbers of one view of n images by name: CPU tensors with a row for each image."""


@dataclass(frozen=True)
class ImageKind:
    """What a view may know of the images."""

    shape: tuple[int, int, int]  # channels, height, width
    mirror: bool = True  # whether mirrored images keep their class: digits do not
    cutout: bool = True  # whether images keep their class when half of them is covered


class View(ABC):
    """One view of images of one kind. Its draws lie on the CPU, where images are grouped by them."""

    def __init__(self, kind: ImageKind) -> None:
        self.kind = kind

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """The draws for n images: a function of the (CPU) generator's state alone. By default there are none."""
        return {}

    @abstractmethod
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """The view of uint8 images N×C×H×W, as uint8 images on their device; the given ones are never changed."""


def coins(generator: torch.Generator, *size: int) -> Tensor:
    """True or false with equal chance."""
    return torch.rand(size, generator=generator) < 0.5


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device without waiting for it."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


_views = Plugins(
    "osp.data.views",
    "osp.views",
    "view",
    only_class(View),  # type: ignore[type-abstract]  # the base itself is never taken
    helpers=("base", "image_ops"),
)


def available() -> list[str]:
    """Names of all views.

    >>> available()
    ['flip', 'plain', 'strong', 'weak']
    """
    return _views.names()


def parsed(view: str) -> tuple[str, int]:
    """A view's name without the number at its end, and which draw of it is meant: `weak` is the first, `weak2` the
    second. A view that has a number in its own name is found by it.

    >>> parsed("weak"), parsed("strong2"), parsed("weak1")
    (('weak', 0), ('strong', 1), ('weak1', 0))
    """
    found = re.fullmatch("(.*?)([2-9]|[1-9][0-9]{1,8})?", view, re.DOTALL)
    if found is None or found[2] is None or view in available():
        return view, 0
    return found[1], int(found[2]) - 1


def content(view: str) -> str | None:
    """Hash of the code of a view from outside the package (`Plugins.content`)."""
    return _views.content(parsed(view)[0])


def find(view: str) -> type[View]:
    """The class of a view, by its name or by the path of a Python file that defines one and that the user named."""
    found = _views.get(parsed(view)[0])
    if found is None:
        raise UserError(f"Unknown view {view!r}.{suggest(parsed(view)[0], available())}")
    return found


@dataclass(frozen=True)
class Plan:
    """The draws for one view of the n images of a global batch; `plan[rank::world]` are those of one process."""

    view: View
    size: int
    draws: Draws

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Plan:
        draws = {name: draw[part] for name, draw in self.draws.items()}
        return Plan(self.view, len(range(self.size)[part]), draws)


class Augmenter:
    """Makes the views of images of one shape (channels, height, width).

    `mirror` and `cutout` are off where they would change the class, as for digits. `instead` gives another view in the
    place of one: {"strong": "./dark.py"}.

    >>> augmenter = Augmenter((1, 8, 8), mean=[0.5], std=[0.5])
    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> plan = augmenter.plan("weak", 2, torch.Generator().manual_seed(0))
    >>> augmenter.apply(images, plan).unique()
    tensor([-1.])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        mirror: bool = True,
        cutout: bool = True,
        instead: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        channels, height, width = shape
        if channels not in (1, 3) or min(height, width) < 8:
            raise ValueError(f"shape={shape}: images have 1 or 3 channels and are 8x8 or larger")
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"mean={mean}, std={std}: one value per channel ({channels}), std above 0")
        self.kind = ImageKind(shape, mirror, cutout)
        self._views: dict[str, View] = {}
        self._instead = instead
        spread = torch.tensor(std, dtype=torch.float64)
        center = torch.tensor(mean, dtype=torch.float64)
        self._scale = (1 / (255 * spread)).float().view(1, -1, 1, 1)
        self._offset = (-center / spread).float().view(1, -1, 1, 1)

    def view(self, name: str) -> View:
        """The view of this name for these images; UserError with a near miss where there is none."""
        base, _ = parsed(name)
        if base not in self._views:
            self._views[base] = find(self._instead.get(base, name))(self.kind)
        return self._views[base]

    def plan(self, view: str, n: int, generator: torch.Generator) -> Plan:
        chosen = self.view(view)
        return Plan(chosen, n, chosen.draw(n, generator))

    def apply(self, images: Tensor, plan: Plan) -> Tensor:
        """The planned view of uint8 images N×C×H×W, normalized, as float32 on the device of the images."""
        return self.normalize(self.transform(images, plan))

    def normalize(self, images: Tensor) -> Tensor:
        """(pixel/255 - mean) / std as float32."""
        scale, offset = to_device(self._scale, images.device), to_device(self._offset, images.device)
        return images.to(torch.float32, copy=True).mul_(scale).add_(offset)

    @torch.no_grad()
    def transform(self, images: Tensor, plan: Plan) -> Tensor:
        """The planned view as 8-bit images, before normalization. The given images are never changed."""
        if images.dtype != torch.uint8 or images.shape != (len(plan), *self.kind.shape):
            wanted = "x".join(str(side) for side in (len(plan), *self.kind.shape))
            given = "x".join(str(side) for side in images.shape)
            raise ValueError(f"images are {images.dtype} {given}; the plan is for torch.uint8 {wanted}")
        result = plan.view.apply(images, plan.draws)
        if result.dtype != torch.uint8 or result.shape != images.shape:
            raise UserError(
                f"The view {type(plan.view).__name__} must give torch.uint8 {tuple(images.shape)}, as it was given; "
                f"it gave {result.dtype} {tuple(result.shape)}."
            )
        return result
