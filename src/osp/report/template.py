"""Pages from templates: one self-contained HTML file each. Everything put into one is text, escaped where it stands."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

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
