"""Pages as self-contained HTML: templates, and the pieces that pages of both kinds of run are made of.

Everything put into a template is text, escaped where it stands.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from osp.report.charts import draw_confusion, worst_pairs
from osp.report.figure import COLORS, svg

JPEG_QUALITY = 85


def render(name: str, **values: Any) -> str:
    """A page; a value that the template wants and does not get is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("osp.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(f"{name}.html.j2").render(**values)


def data_url(content: bytes, kind: str) -> str:
    """Bytes inside the page: `data:image/png;base64,...`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def picture_url(image: np.ndarray, largest: int = 112) -> str:
    """A uint8 H×W×3 image as it is, or smaller: PNG while it is small, JPEG for photographs."""
    from PIL import Image

    picture = Image.fromarray(image)
    small = max(picture.size) <= 64
    picture.thumbnail((largest, largest))
    grey = (image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all()
    if grey:
        picture = picture.convert("L")
    return encoded(picture, lossless=small or bool(grey))


def encoded(picture: Any, lossless: bool) -> str:
    """A Pillow image inside the page."""
    buffer = io.BytesIO()
    if lossless:
        picture.save(buffer, format="PNG", optimize=True)
        return data_url(buffer.getvalue(), "image/png")
    picture.save(buffer, format="JPEG", quality=JPEG_QUALITY)
    return data_url(buffer.getvalue(), "image/jpeg")


MOST_CELLS = 15
"""Classes up to which the confusion matrix is a table with names."""
THUMBNAIL = 48


def drawn(figure: Figure) -> str:
    return data_url(svg(figure, transparent=True), "image/svg+xml")


def mark(number: int) -> dict[str, str]:
    """Color, marker and filter key of a class, or of OOD (-1)."""
    if number < 0:
        return {"key": "ood", "style": "cood", "marker": "mood"}
    count = len(COLORS)
    return {"key": str(number), "style": f"c{number % count}", "marker": f"m{(number + number // count) % count}"}


def atlas_of(images: list[np.ndarray]) -> dict[str, Any]:
    """All thumbnails in one picture, row by row: one inline file instead of a thousand."""
    from PIL import Image

    side = min(THUMBNAIL, max(images[0].shape[:2]))
    columns = int(np.ceil(np.sqrt(len(images))))
    grey = all((image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all() for image in images)
    sheet = Image.new("L" if grey else "RGB", (columns * side, -(-len(images) // columns) * side))
    for number, image in enumerate(images):
        picture = Image.fromarray(image)
        picture = picture if picture.size == (side, side) else picture.resize((side, side))
        sheet.paste(picture.convert(sheet.mode), (number % columns * side, number // columns * side))
    return {"atlas": encoded(sheet, lossless=grey), "side": side, "columns": columns}


def confusion_part(matrix: np.ndarray, names: tuple[str, ...]) -> dict[str, Any] | None:
    """The confusion matrix (rows are classes) with its worst pairs; None where nothing was counted."""
    if matrix.shape != (len(names), len(names)) or not matrix.sum():
        return None
    shares = 100 * matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    pairs = [
        {
            "truth": names[pair.truth],
            "predicted": names[pair.predicted],
            "count": f"{pair.count:,}",
            "share": f"{pair.share:.0f}",
        }
        for pair in worst_pairs(matrix)
    ]
    rows = [
        {"name": name, "cells": [{"count": int(n), "share": round(float(s))} for n, s in zip(ns, ss, strict=True)]}
        for name, ns, ss in zip(names, matrix, shares, strict=True)
    ]
    if len(names) <= MOST_CELLS:
        return {"rows": rows, "pairs": pairs, "drawing": None}
    figure = Figure(figsize=(6.4, 6.0), layout="constrained", dpi=110)
    draw_confusion(figure.subplots(), matrix, names)
    return {"rows": [], "pairs": pairs, "drawing": drawn(figure)}
