"""Read by schemathesis: bodies of /predict are images, whole, cut off or with a byte changed, or noise."""

from __future__ import annotations

import os
from pathlib import Path

import schemathesis  # type: ignore[import-not-found]
from hypothesis import strategies as st


def cut(content: bytes, at: int) -> bytes:
    return content[: at % len(content)]


def changed(content: bytes, at: int, value: int) -> bytes:
    place = at % len(content)
    return content[:place] + bytes([value]) + content[place + 1 :]


places, values = st.integers(0, 2**20), st.integers(0, 255)
for picture in sorted(Path(os.environ["TORTURE_PICTURES"]).iterdir()):
    whole = st.just(picture.read_bytes())
    bodies = whole | st.builds(cut, whole, places) | st.builds(changed, whole, places, values) | st.binary(max_size=99)
    schemathesis.openapi.media_type(f"image/{picture.name}", bodies)
