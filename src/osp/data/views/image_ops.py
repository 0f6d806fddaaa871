"""Pillow's operations on 8-bit images, for whole batches: uint8 N×C×H×W in, uint8 N×C×H×W out, own parameter per image.

The RandAugment of FixMatch is defined by what Pillow does to an 8-bit image, so every function here follows Pillow's
arithmetic to the last rounding (read from Pillow 13's `ImageOps.py`, `ImageEnhance.py`, `Blend.c`, `Filter.c`,
`Geometry.c`, `Convert.c`) and is tested for equality with it. Parameters lie on the device of the images. Operations
that map grey levels give a table of 256 entries per image and channel, so that many of them share one `apply_table`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

GREY = 127  # the grey of FixMatch's cutout


def blend(degenerate: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """`Image.blend`: degenerate + factor * (image - degenerate) in float32, clipped and truncated, not rounded."""
    degenerate = degenerate.float()
    return (degenerate + factor * (image.float() - degenerate)).clamp_(0, 255).to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """`convert("L")` of Convert.c, N×1×H×W as int32: (19595 R + 38470 G + 7471 B + 2^15) >> 16."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


# Tables of grey levels


def apply_table(images: Tensor, tables: Tensor) -> Tensor:
    """Each pixel replaced by the entry of its image's and channel's table (`tables`: N×C×256, uint8)."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _levels(device: torch.device) -> Tensor:
    return torch.arange(256, device=device)


def brightness_table(factor: Tensor) -> Tensor:
    """`ImageEnhance.Brightness`: a blend with black. One table a factor, N×256."""
    return blend(torch.zeros((), device=factor.device), _levels(factor.device), factor[:, None])


def posterize_table(bits: Tensor) -> Tensor:
    """`ImageOps.posterize`: only the upper bits kept. One table a number of bits, N×256."""
    lost = 8 - bits[:, None]
    return (_levels(bits.device) >> lost << lost).to(torch.uint8)


def solarize_table(threshold: Tensor) -> Tensor:
    """`ImageOps.solarize`: levels from the threshold on inverted. One table a threshold, N×256."""
    levels = _levels(threshold.device)
    return torch.where(levels < threshold[:, None], levels, 255 - levels).to(torch.uint8)


def contrast_table(images: Tensor, factor: Tensor) -> Tensor:
    """`ImageEnhance.Contrast`: a blend with the image's mean grey, int(mean + 0.5). N×C×256."""
    total = grey(images).sum((1, 2, 3))
    pixels = images.shape[2] * images.shape[3]
    mean = (2 * total + pixels) // (2 * pixels)
    table = blend(mean[:, None], _levels(images.device), factor[:, None])
    return table[:, None].expand(-1, images.shape[1], -1)


def autocontrast_table(images: Tensor) -> Tensor:
    """`ImageOps.autocontrast`: each channel's range stretched to 0..255. N×C×256.

    Pillow computes in double precision and truncates, and whole numbers may come out just below themselves; so double
    here too.
    """
    low = images.amin((2, 3)).double()[..., None]
    high = images.amax((2, 3)).double()[..., None]
    levels = _levels(images.device)
    scale = torch.full_like(low, 255).div_((high - low).clamp_(min=1))  # 255 / tensor would round twice
    table = (levels * scale + -low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, table, levels.to(torch.uint8))


def equalize_table(images: Tensor) -> Tensor:
    """`ImageOps.equalize`: entry i = (step//2 + pixels below i) // step, step = (pixels not at the top level) // 255.

    Where step is 0 (few pixels: always below 16×16) the image stays as it is. N×C×256.
    """
    n, channels, height, width = images.shape
    values = images.reshape(n * channels, -1).long()
    bins = (values + 256 * torch.arange(n * channels, device=images.device)[:, None]).flatten()
    # 1-D, which has a deterministic form on CUDA; torch.bincount would wait for the device
    histogram = torch.zeros(n * channels * 256, dtype=torch.int64, device=images.device)
    histogram = histogram.scatter_add_(0, bins, torch.ones_like(bins)).view(n * channels, 256)
    at_top = histogram.gather(1, values.amax(1, keepdim=True))
    step = (height * width - at_top) // 255
    below = histogram.cumsum(1) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table, _levels(images.device)).to(torch.uint8).view(n, channels, 256)


# Operations that look at more than one value


def color(images: Tensor, factor: Tensor) -> Tensor:
    """`ImageEnhance.Color`: a blend with the grey image; the identity for images of one channel."""
    if images.shape[1] == 1:
        return images.clone()
    return blend(grey(images), images, factor[:, None, None, None])


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """`ImageEnhance.Sharpness`: a blend with `SMOOTH`, the 3×3 mean with weight 5 in the middle; the rim stays.

    Pillow truncates sum/13 + 0.5 in float32; as sum/13 is never near a half, the integer form is the same.
    """
    values = images.to(torch.int16)
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[:, :, 1:-1, 1:-1]
    inner = images[:, :, 1:-1, 1:-1]
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = blend((2 * total + 13) // 26, inner, factor[:, None, None, None])
    return out


# Geometry: every operation moves whole pixels, so each is one gather by flat index


def _take(images: Tensor, index: Tensor) -> Tensor:
    """The pixels of each image at flat positions (N×H×W, of any size H×W), the same for all channels."""
    n, height, width = index.shape
    channels = images.shape[1]
    index = index.long().flatten(1)[:, None].expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view(n, channels, height, width)


def crop_and_flip(images: Tensor, shift: Tensor, flip: Tensor | None) -> Tensor:
    """Mirror where `flip`, pad by reflection, crop to the old size: the window moved by `shift` (N×2: down, right)."""
    _, _, height, width = images.shape

    def reflected(size: int, by: Tensor) -> Tensor:
        position = (torch.arange(size, device=images.device) + by[:, None]).abs_()
        return (size - 1) - ((size - 1) - position).abs_()

    rows, columns = reflected(height, shift[:, 0]), reflected(width, shift[:, 1])
    if flip is not None:
        columns = torch.where(flip[:, None], (width - 1) - columns, columns)
    return _take(images, (rows * width)[:, :, None] + columns[:, None, :])


def fixed_point(matrix: Sequence[float]) -> list[int]:
    """The six numbers of an affine map from output to input in Pillow's 16.16 fixed point, at pixel centers."""
    a, b, c, d, e, f = matrix

    def fix(value: float) -> int:
        return math.floor(value * 65536.0 + 0.5)

    return [fix(a), fix(b), fix(c + a * 0.5 + b * 0.5), fix(d), fix(e), fix(f + d * 0.5 + e * 0.5)]


def rotation_matrix(degrees: float, height: int, width: int) -> list[float]:
    """The affine map behind `Image.rotate`: anticlockwise about the center, in Pillow's order of rounding."""
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return [cos, sin, cos * -x + sin * -y + 0.0 + x, -sin, cos, -sin * -x + cos * -y + 0.0 + y]


def affine(images: Tensor, coefficients: Tensor) -> Tensor:
    """`Image.transform(size, AFFINE, matrix)`: nearest neighbor, black outside. `coefficients`: `fixed_point`, N×6."""
    n, channels, height, width = images.shape
    a, b, c, d, e, f = coefficients.int()[:, :, None, None].unbind(1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device)[:, None]
    # A black rim of one pixel catches all that lies outside: cheaper than four comparisons and a mask.
    framed = images.new_zeros(n, channels, height + 2, width + 2)
    framed[:, :, 1:-1, 1:-1] = images
    columns = (a * x + (b * y + c)).bitwise_right_shift_(16).add_(1).clamp_(0, width + 1)
    rows = (d * x + (e * y + f)).bitwise_right_shift_(16).add_(1).clamp_(0, height + 1)
    return _take(framed, rows.mul_(width + 2).add_(columns))


def cutout(images: Tensor, center: Tensor, side: int) -> Tensor:
    """A grey square around `center` (N×2: row, column): side//2 pixels before it, clipped at the border.

    By bit masks, as `masked_fill` of bytes takes four times as long on the CPU.
    """
    _, _, height, width = images.shape

    def covered(size: int, middle: Tensor) -> Tensor:
        distance = torch.arange(size, device=images.device) - (middle[:, None] - side // 2)
        return ((distance >= 0) & (distance < side)).to(torch.uint8) * 255

    square = covered(height, center[:, 0])[:, :, None] & covered(width, center[:, 1])[:, None, :]
    square = square.flatten(1)[:, None]
    return (images.flatten(2) & ~square).bitwise_or_(square & GREY).view_as(images)
