"""The views of the images that methods learn from: whole batches of uint8 images in, normalised float32 out.

`plain` normalises only; `flip` mirrors half of the images; `weak` mirrors and crops after reflect padding of 1/8 of the
side; `strong` is the weak geometry, then FixMatch's RandAugment (Sohn et al. 2020, arXiv 2001.07685) with operations,
levels and signs drawn per image, then a grey square of half the side.

What is random is drawn on the CPU into a `Plan`, for the global batch, and applied on the device of the images. As the
draws lie on the CPU, images can be grouped by operation without waiting for the device, and each operation computes on
its own images only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osp.data import image_ops
from osp.errors import suggest

VIEWS = ("plain", "flip", "weak", "strong")

OPERATIONS = (
    "AutoContrast",
    "Brightness",
    "Color",
    "Contrast",
    "Equalize",
    "Identity",
    "Posterize",
    "Rotate",
    "Sharpness",
    "ShearX",
    "ShearY",
    "Solarize",
    "TranslateX",
    "TranslateY",
)
"""FixMatch's pool. A plan holds positions in this tuple."""

_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_TABLES = ("AutoContrast", "Brightness", "Contrast", "Equalize", "Posterize", "Solarize")
_AFFINE = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
_ENHANCE = ("Brightness", "Color", "Contrast", "Sharpness")


@dataclass(frozen=True)
class Plan:
    """The draws for one view of n images, as small CPU tensors; a step whose draws are None is left out.

    It is drawn for the global batch: `plan[rank::world]` are the draws for the images of one process.
    """

    size: int
    flip: Tensor | None = None
    """bool, n: mirrored or not."""
    shift: Tensor | None = None
    """int64, n×2: how far the crop lies below and right of the image, from -pad to pad."""
    op: Tensor | None = None
    """int64, n×num_ops: the operations in the order of application, as positions in `OPERATIONS`."""
    level: Tensor | None = None
    """int64, n×num_ops: from 1 to magnitude - 1."""
    negative: Tensor | None = None
    """bool, n×num_ops: the sign of rotations, shears and translations."""
    active: Tensor | None = None
    """bool, n×num_ops: whether the operation is applied at all."""
    centre: Tensor | None = None
    """int64, n×2: row and column of the middle of the cutout."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> Plan:
        draws = {name: draw[part] for name, draw in vars(self).items() if isinstance(draw, Tensor)}
        return Plan(len(range(self.size)[part]), **draws)


class Augmenter:
    """Makes the views of images of one shape (channels, height, width).

    `mirror` and `cutout` are off where they would change the class, as for digits. `num_ops` and `magnitude` are n and
    m of FixMatch's RandAugment: m = 10 draws levels from 1 to 9 of 10.

    >>> augmenter = Augmenter((1, 8, 8), mean=[0.5], std=[0.5])
    >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> augmenter.view(images, "weak", torch.Generator().manual_seed(0)).unique()
    tensor([-1.])
    """

    VIEWS = VIEWS

    def __init__(
        self,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        mirror: bool = True,
        cutout: bool = True,
        num_ops: int = 2,
        magnitude: int = 10,
    ) -> None:
        channels, height, width = shape
        if channels not in (1, 3) or min(height, width) < 8:
            raise ValueError(f"shape={shape}: images have 1 or 3 channels and are 8x8 or larger")
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"mean={mean}, std={std}: one value a channel ({channels}), std above 0")
        if num_ops < 0:
            raise ValueError(f"num_ops={num_ops}: 0 or more")
        if not 2 <= magnitude <= 11:  # posterize would keep more than 8 bits above level 10
            raise ValueError(f"magnitude={magnitude}: from 2 to 11")
        self.shape = (channels, height, width)
        self.mirror, self.cutout = mirror, cutout
        self.num_ops, self.magnitude = num_ops, magnitude
        self.pad = (int(height / 8), int(width / 8))
        self.cutout_side = int(min(height, width) / 2)
        spread = torch.tensor(std, dtype=torch.float64)
        centre = torch.tensor(mean, dtype=torch.float64)
        self._scale = (1 / (255 * spread)).float().view(1, -1, 1, 1)
        self._offset = (-centre / spread).float().view(1, -1, 1, 1)
        self._factors, self._tables, self._matrices = self._parameters()

    def _parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """What each operation does at each level, by [operation, level]; matrices by [operation, level, negative].

        FixMatch's formulas: level*max/10 + bias, truncated before the bias where Pillow takes a whole number.
        """
        _, height, width = self.shape
        levels = self.magnitude
        factors = torch.zeros(len(OPERATIONS), levels)
        tables = torch.arange(256, dtype=torch.uint8).repeat(len(OPERATIONS), levels, 1)
        matrices = torch.zeros(len(OPERATIONS), levels, 2, 6, dtype=torch.int64)
        factors[_numbers(_ENHANCE)] = torch.tensor([v * 0.9 / 10 + 0.05 for v in range(levels)])
        bits = torch.tensor([int(v * 4 / 10) + 4 for v in range(levels)])
        threshold = torch.tensor([256 - int(v * 256 / 10) for v in range(levels)])
        tables[_NUMBER["Brightness"]] = image_ops.brightness_table(factors[_NUMBER["Brightness"]])
        tables[_NUMBER["Posterize"]] = image_ops.posterize_table(bits)
        tables[_NUMBER["Solarize"]] = image_ops.solarize_table(threshold)
        for level in range(levels):
            for negative, sign in enumerate((1, -1)):
                share = sign * (level * 0.3 / 10)
                forms: dict[str, list[float]] = {
                    "Rotate": image_ops.rotation_matrix(sign * int(level * 30 / 10), height, width),
                    "ShearX": [1, share, 0, 0, 1, 0],
                    "ShearY": [1, 0, 0, share, 1, 0],
                    "TranslateX": [1, 0, int(share * width), 0, 1, 0],
                    "TranslateY": [1, 0, 0, 0, 1, int(share * height)],
                }
                for name, form in forms.items():
                    matrices[_NUMBER[name], level, negative] = torch.tensor(image_ops.fixed_point(form))
        return factors, tables, matrices

    def plan(self, view: str, n: int, generator: torch.Generator) -> Plan:
        """The draws for `view` of n images: a function of the (CPU) generator's state alone."""
        if view not in VIEWS:
            raise ValueError(f"view={view!r} is unknown.{suggest(view, VIEWS)}")
        if view == "plain":
            return Plan(n)

        def integers(low: int, high: int, *size: int) -> Tensor:
            return torch.randint(low, high, size, generator=generator)

        def coins(*size: int) -> Tensor:
            return torch.rand(size, generator=generator) < 0.5

        def points(limits: Iterable[tuple[int, int]]) -> Tensor:
            return torch.stack([integers(low, high, n) for low, high in limits], dim=1)

        flip = coins(n) if self.mirror else None
        if view == "flip":
            return Plan(n, flip=flip)
        shift = points((-pad, pad + 1) for pad in self.pad)
        if view == "weak":
            return Plan(n, flip=flip, shift=shift)
        draws = (n, self.num_ops)
        return Plan(
            n,
            flip=flip,
            shift=shift,
            op=integers(0, len(OPERATIONS), *draws),
            level=integers(1, self.magnitude, *draws),
            negative=coins(*draws),
            active=coins(*draws),
            centre=points((0, side) for side in self.shape[1:]) if self.cutout else None,
        )

    def apply(self, images: Tensor, plan: Plan) -> Tensor:
        """The planned view of uint8 images N×C×H×W, normalised, as float32 on the device of the images."""
        return self.normalize(self.transform(images, plan))

    def view(self, images: Tensor, view: str, generator: torch.Generator) -> Tensor:
        """Plan and apply in one."""
        return self.apply(images, self.plan(view, len(images), generator))

    def normalize(self, images: Tensor) -> Tensor:
        """(pixel/255 - mean) / std as float32."""
        scale, offset = _to(self._scale, images.device), _to(self._offset, images.device)
        return images.to(torch.float32, copy=True).mul_(scale).add_(offset)

    @torch.no_grad()
    def transform(self, images: Tensor, plan: Plan) -> Tensor:
        """The planned view as 8-bit images, before normalisation. The given images are never changed."""
        if images.dtype != torch.uint8 or images.shape != (len(plan), *self.shape):
            wanted = "x".join(str(side) for side in (len(plan), *self.shape))
            given = "x".join(str(side) for side in images.shape)
            raise ValueError(f"images are {images.dtype} {given}; the plan is for torch.uint8 {wanted}")
        device = images.device
        if plan.flip is not None or plan.shift is not None:
            shift = torch.zeros(len(plan), 2, dtype=torch.int64) if plan.shift is None else plan.shift
            flip = None if plan.flip is None else _to(plan.flip, device)
            images = image_ops.crop_and_flip(images, _to(shift, device), flip)
        if plan.op is None:
            return images
        assert plan.level is not None and plan.negative is not None and plan.active is not None  # noqa: PT018
        if plan.shift is None:  # all that follows works in place
            images = images.clone()
        for i in range(plan.op.shape[1]):
            op = torch.where(plan.active[:, i], plan.op[:, i], _NUMBER["Identity"])
            self._operate_(images, op, plan.level[:, i], plan.negative[:, i])
        if plan.centre is not None:
            images = image_ops.cutout(images, _to(plan.centre, device), self.cutout_side)
        return images

    def _operate_(self, images: Tensor, op: Tensor, level: Tensor, negative: Tensor) -> None:
        """One operation an image, in place: images with operations of one kind are taken out and put back together."""
        kinds: list[tuple[Sequence[str], Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]] = [
            (_TABLES, self._by_table),
            (_AFFINE, self._by_matrix),
            (("Sharpness",), self._sharpness),
        ]
        if images.shape[1] == 3:
            kinds.append((("Color",), self._color))
        # all kinds of one layer see the layer's input: their images are disjoint
        for names, function in kinds:
            members = _positions(op, names)
            if len(members):
                place = _to(members, images.device)
                chosen = images.index_select(0, place)
                images.index_copy_(0, place, function(chosen, op[members], level[members], negative[members]))

    def _by_table(self, images: Tensor, op: Tensor, level: Tensor, _: Tensor) -> Tensor:
        n, channels = images.shape[:2]
        tables = _to(self._tables[op, level], images.device)[:, None].expand(n, channels, 256).contiguous()
        for name in ("AutoContrast", "Contrast", "Equalize"):  # these depend on the image too
            members = _positions(op, (name,))
            if len(members):
                place = _to(members, images.device)
                chosen = images.index_select(0, place)
                if name == "AutoContrast":
                    new = image_ops.autocontrast_table(chosen)
                elif name == "Contrast":
                    factor = _to(self._factors[op[members], level[members]], images.device)
                    new = image_ops.contrast_table(chosen, factor)
                else:
                    new = image_ops.equalize_table(chosen)
                tables.index_copy_(0, place, new)
        return image_ops.apply_table(images, tables)

    def _by_matrix(self, images: Tensor, op: Tensor, level: Tensor, negative: Tensor) -> Tensor:
        return image_ops.affine(images, _to(self._matrices[op, level, negative.long()], images.device))

    def _sharpness(self, images: Tensor, op: Tensor, level: Tensor, _: Tensor) -> Tensor:
        return image_ops.sharpness(images, _to(self._factors[op, level], images.device))

    def _color(self, images: Tensor, op: Tensor, level: Tensor, _: Tensor) -> Tensor:
        return image_ops.color(images, _to(self._factors[op, level], images.device))


def _numbers(names: Iterable[str]) -> Tensor:
    return torch.tensor([_NUMBER[name] for name in names])


def _positions(op: Tensor, names: Iterable[str]) -> Tensor:
    return torch.isin(op, _numbers(names)).nonzero().squeeze(1)


def _to(draws: Tensor, device: torch.device) -> Tensor:
    return draws.to(device, non_blocking=True)
