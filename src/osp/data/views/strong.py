"""The weak geometry, FixMatch's RandAugment, then a grey square of half the side.

RandAugment as in FixMatch (Sohn et al. 2020, arXiv 2001.07685): two operations per image of a pool of fourteen, drawn
with replacement, each applied with probability one half, at a level from 1 to 9 of 10 and with a random sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from osp.data.views import image_ops
from osp.data.views.base import Draws, ImageKind, coins, to_device
from osp.data.views.weak import Weak

OPERATIONS_PER_IMAGE, LEVELS = 2, 10
"""FixMatch's n and m: m = 10 draws levels from 1 to 9 of 10."""

# fmt: off
OPERATIONS = (
    "AutoContrast", "Brightness", "Color", "Contrast", "Equalize", "Identity", "Posterize", "Rotate", "Sharpness",
    "ShearX", "ShearY", "Solarize", "TranslateX", "TranslateY",
)
# fmt: on
"""FixMatch's pool. Draws are positions in this tuple."""

_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_TABLES = ("AutoContrast", "Brightness", "Contrast", "Equalize", "Posterize", "Solarize")
_AFFINE = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
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
                place = to_device(members, images.device)
                chosen = images.index_select(0, place)
                images.index_copy_(0, place, function(chosen, op[members], level[members], negative[members]))

    def _by_table(self, images: Tensor, op: Tensor, level: Tensor, _: Tensor) -> Tensor:
        n, channels = images.shape[:2]
        tables = to_device(self._tables[op, level], images.device)[:, None].expand(n, channels, 256).contiguous()
        for name in ("AutoContrast", "Contrast", "Equalize"):  # these depend on the image too
            members = _positions(op, (name,))
            if len(members):
                place = to_device(members, images.device)
                chosen = images.index_select(0, place)
                if name == "AutoContrast":
                    new = image_ops.autocontrast_table(chosen)
                elif name == "Contrast":
                    factor = to_device(self._factors[op[members], level[members]], images.device)
                    new = image_ops.contrast_table(chosen, factor)
                else:
                    new = image_ops.equalize_table(chosen)
                tables.index_copy_(0, place, new)
        return image_ops.apply_table(images, tables)

    def _by_matrix(self, images: Tensor, op: Tensor, level: Tensor, negative: Tensor) -> Tensor:
        return image_ops.affine(images, to_device(self._matrices[op, level, negative.long()], images.device))

    def _sharpness(self, images: Tensor, op: Tensor, level: Tensor, _: Tensor) -> Tensor:
        return image_ops.sharpness(images, to_device(self._factors[op, level], images.device))

    def _color(self, images: Tensor, op: Tensor, level: Tensor, _: Tensor) -> Tensor:
        return image_ops.color(images, to_device(self._factors[op, level], images.device))


def _numbers(names: Iterable[str]) -> Tensor:
    return torch.tensor([_NUMBER[name] for name in names])


def _positions(op: Tensor, names: Iterable[str]) -> Tensor:
    return torch.isin(op, _numbers(names)).nonzero().squeeze(1)
