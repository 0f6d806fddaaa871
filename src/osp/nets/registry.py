"""Networks by name: one file each in this folder, an installed package's entry point (group `osp.networks`), or a path.

A network file has a constant `NETWORK`, a `NetworkSpec`: how the encoder is built and what is known about it. Whatever
is asked by name alone (`check_name`) builds nothing and needs no data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from types import ModuleType
from typing import Any

from torch import nn

from osp.errors import UserError, short, suggest
from osp.plugins import Plugins, is_file

Shape = tuple[int, ...]
"""Of one input: channels, height and width of an image, or the length of a stored feature vector."""

LARGEST = 500_000_000
"""Parameters: 2 GB of weights, and as much again for each of gradient and momentum."""


@dataclass(frozen=True)
class NetworkSpec:
    """One network, or a family of networks whose names hold whole numbers."""

    name: str
    """That of its file. A family writes its numbers as capital words: `wrn-DEPTH-WIDTH` is found in `wrn.py`."""
    build: Callable[..., nn.Module]
    """build(shape, *numbers): a module that turns N inputs of this shape into N×D features."""
    summary: str
    """One line for lists."""
    origin: str
    """Authors and publication."""
    license: str = ""
    """Of the code, and of the weights where it comes with some."""
    example: str = ""
    """A member of the family, for suggestions."""
    takes: int = 3
    """Dimensions of an input: 3 for images, 1 for stored features."""
    image_size: int | None = None
    """The side of the images that it needs; None takes any from 8x8 up."""
    mean: tuple[float, ...] | None = None
    """Of the pixels (0 to 1) that it was trained on, per channel; None takes the data set's."""
    std: tuple[float, ...] | None = None
    feature_dropout: float = 0.0
    """Share of the features dropped before the classifier in training."""
    cam_layer: str | None = None
    """The layer that Grad-CAM looks at, as a path inside the module (`blocks.2`)."""
    parameters: Callable[..., int] | None = None
    """parameters(*numbers): about how many there will be, without building; UserError where the numbers fit none."""
    licence: InitVar[str] = ""
    """`license`, as network files for version 0.1 spell it."""

    def __post_init__(self, licence: str) -> None:
        object.__setattr__(self, "license", self.license or licence)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """The whole numbers in a name of the family, `()` for a single network; None where it is no such name."""
        pattern = re.sub("[A-Z]+", r"(\\d{1,9})", self.name)
        found = re.fullmatch(pattern, name, re.ASCII)
        return tuple(int(number) for number in found.groups()) if found else None

    def check_shape(self, shape: Shape) -> None:
        """Refuse inputs that the network cannot take."""
        if len(shape) != self.takes:
            wanted = "images" if self.takes == 3 else "stored features"
            given = f"features of {shape[0]} numbers" if len(shape) == 1 else "images"
            raise UserError(f"The network {self.name} takes {wanted}, but these are {given}. Choose another network.")
        if len(shape) == 3 and self.image_size is not None and shape[1:] != (self.image_size, self.image_size):
            raise UserError(
                f"The network {self.name} takes images of {self.image_size}x{self.image_size}; these are "
                f"{shape[2]}x{shape[1]}. Set image_size={self.image_size}."
            )
        if len(shape) == 3 and self.mean is not None and shape[0] != len(self.mean):
            raise UserError(f"The network {self.name} takes {len(self.mean)} channels; these images have {shape[0]}.")


def _read(thing: Any) -> NetworkSpec:
    spec = getattr(thing, "NETWORK", None) if isinstance(thing, ModuleType) else thing
    if not isinstance(spec, NetworkSpec):
        raise TypeError("a network file has a constant NETWORK, an osp.nets.NetworkSpec")
    return spec


_networks = Plugins(
    "osp.nets",
    "osp.networks",
    "network",
    _read,
    helpers=("batchnorm", "huggingface", "network", "pretrained", "registry"),
)


def available() -> list[str]:
    """Names of all networks; a family is listed as `wrn-DEPTH-WIDTH`, an installed package's by its entry point.

    >>> available()
    ['adapter', 'cnn', 'fast', 'small', 'wrn-DEPTH-WIDTH']
    """
    own = {name: spec.name for name in _networks.files() if (spec := _networks.get(name)) is not None}
    return sorted(own.get(name, name) for name in _networks.names())


def find(name: str) -> tuple[NetworkSpec, tuple[int, ...]]:
    """What is known about the network of this name, and the numbers in the name."""
    holder = _holder(name)
    spec = None if holder is None else _networks.get(holder)
    numbers = None if spec is None else spec.numbers((spec.example or spec.name) if is_file(name) else name)
    if is_file(name) and numbers is None:
        raise UserError(
            f"The network file {name} is of a family: its NETWORK needs an `example`, which is what is built."
        )
    if spec is None or numbers is None:
        raise UserError(_unknown(name))
    count = 0 if spec.parameters is None else spec.parameters(*numbers)
    if count > LARGEST:
        raise UserError(
            f"The network {name} would have {count / 1e6:,.0f} million parameters; the limit is "
            f"{LARGEST / 1e6:,.0f} million. Choose a smaller one."
        )
    return spec, numbers


def _holder(name: str) -> str | None:
    """The file or entry point that a network's name belongs to."""
    if is_file(name):
        return name
    holders = (each for each in _networks.names() if name == each or name.startswith(f"{each}-"))
    return max(holders, key=len, default=None)


def content(name: str) -> str | None:
    """Hash of the code of a network from outside the package (`Plugins.content`)."""
    holder = _holder(name)
    return None if holder is None else _networks.content(holder)


def size_of(name: str) -> int:
    """About how many parameters the network of this name has, without building it; 0 where that is not known."""
    spec, numbers = find(name)
    return 0 if spec.parameters is None else spec.parameters(*numbers)


def _unknown(name: str) -> str:
    own = [spec for each in _networks.files() if (spec := _networks.get(each)) is not None]
    families = " or ".join(spec.name for spec in own if spec.example)
    hint = suggest(name, [*(spec.example or spec.name for spec in own), *_networks.installed()])
    return f"Unknown network {short(name)}.{hint} Any {families} works, or a file of your own: ./mine.py"


def check_name(name: str) -> NetworkSpec:
    """What is known about the network of this name; UserError for a name that is unknown or asks for too much.

    >>> check_name("wrn-28-2").cam_layer
    'activation'
    """
    return find(name)[0]


def build_encoder(name: str, shape: Shape) -> nn.Module:
    """The encoder of this name for inputs of this shape."""
    spec, numbers = find(name)
    spec.check_shape(shape)
    return spec.build(shape, *numbers)
