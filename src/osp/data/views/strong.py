"""The weak geometry, FixMatch's RandAugment, then a grey square of half the side.

RandAugment as in FixMatch (Sohn et al. 2020, arXiv 2001.07685): two operations per image of a pool of fourteen, drawn
with replacement, each applied with probability one half, at a level from 1 to 9 of 10 and with a random sign.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from osp.data.views import image_ops
from osp.data.views.base import Draws, ImageKind, coins, to_device
from osp.data.views.weak import Weak

OPERATIONS_PER_IMAGE, LEVELS = 2, 10  # FixMatch's n and m: m = 10 draws levels from 1 to 9 of 10

# fmt: off
OPERATIONS = (
    "AutoContrast", "Brightness", "Color", "Contrast", "Equalize", "Identity", "Posterize", "Rotate", "Sharpness",
    "ShearX", "ShearY", "Solarize", "TranslateX", "TranslateY",
)
# fmt: on
"""FixMatch's pool. Draws are positions in this tuple."""

_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_KINDS = {
    "table": ("Brightness", "Posterize", "Solarize"),  # the same for all images
    "autocontrast": ("AutoContrast",),
    "contrast": ("Contrast",),
    "equalize": ("Equalize",),
    "affine": ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"),
    "sharpness": ("Sharpness",),
    "color": ("Color",),
}
_ENHANCE = ("Brightness", "Color", "Contrast", "Sharpness")


class Strong(Weak):
    """Draws what `weak` draws, then, each n×2: `op` (int64), positions in `OPERATIONS` in the order of application;
    `level` (int64); `negative` (bool), the sign of rotations, shears and translations; `active` (bool), whether the
    operation is applied at all; and `center` (int64), row and column of the middle of the square, if there is one.
    """

    def __init__(self, kind: ImageKind) -> None:
        super().__init__(kind)
        self.cutout_side = int(min(kind.shape[1:]) / 2)
        self._factors, self._tables, self._matrices = self._parameters()

    def _parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """What each operation does at each level, by [operation, level]; matrices by [operation, level, negative].

        FixMatch's formulas: level*max/10 + bias, truncated before the bias where Pillow takes a whole number.
        """
        _, height, width = self.kind.shape
        levels = LEVELS
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

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        size = (n, OPERATIONS_PER_IMAGE)
        draws = {
            **super().draw(n, generator),
            "op": torch.randint(0, len(OPERATIONS), size, generator=generator),
            "level": torch.randint(1, LEVELS, size, generator=generator),
            "negative": coins(generator, *size),
            "active": coins(generator, *size),
        }
        if self.kind.cutout:
            center = [torch.randint(0, side, (n,), generator=generator) for side in self.kind.shape[1:]]
            draws["center"] = torch.stack(center, dim=1)
        return draws

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        images = super().apply(images, draws)  # new ones: all that follows works in place
        for i in range(draws["op"].shape[1]):
            op = torch.where(draws["active"][:, i], draws["op"][:, i], _NUMBER["Identity"])
            self._operate_(images, op, draws["level"][:, i], draws["negative"][:, i])
        if "center" in draws:
            images = image_ops.cutout(images, to_device(draws["center"], images.device), self.cutout_side)
        return images

    def _operate_(self, images: Tensor, op: Tensor, level: Tensor, negative: Tensor) -> None:
        """One operation per image, in place: images with operations of one kind are taken out and put back together."""
        # all kinds of one layer see the layer's input: their images are disjoint
        for kind, names in _KINDS.items():
            members = torch.isin(op, _numbers(names)).nonzero().squeeze(1)
            if len(members):
                place = to_device(members, images.device)
                drawn = op[members], level[members], negative[members].long()
                images.index_copy_(0, place, self._operated(kind, images.index_select(0, place), *drawn))

    def _operated(self, kind: str, images: Tensor, op: Tensor, level: Tensor, negative: Tensor) -> Tensor:
        if kind == "affine":
            return image_ops.affine(images, to_device(self._matrices[op, level, negative], images.device))
        factor = to_device(self._factors[op, level], images.device)
        if kind == "sharpness":
            return image_ops.sharpness(images, factor)
        if kind == "color":
            return image_ops.color(images, factor)
        if kind == "autocontrast":
            tables = image_ops.autocontrast_table(images)
        elif kind == "contrast":
            tables = image_ops.contrast_table(images, factor)
        elif kind == "equalize":
            tables = image_ops.equalize_table(images)
        else:
            tables = to_device(self._tables[op, level], images.device)[:, None].expand(-1, images.shape[1], -1)
        return image_ops.apply_table(images, tables)


def _numbers(names: Iterable[str]) -> Tensor:
    return torch.tensor([_NUMBER[name] for name in names])
