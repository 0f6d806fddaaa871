"""Small image files that cost much, and what stands in the place of a file but is none."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

from PIL import Image


def progressive(side: int, scans: int) -> bytes:
    """A JPEG whose last scan is there many times."""
    made = io.BytesIO()
    Image.new("L", (side, side), 128).save(made, "JPEG", progressive=True)
    content = made.getvalue()
    last = content.rfind(b"\xff\xda")
    return content[:last] + content[last:-2] * scans + content[-2:]


def tiled(side: int, tile: int) -> bytes:
    """A TIFF of one tile, packed."""
    data = zlib.compress(bytes(3 * tile * tile))
    tags = {256: side, 257: side, 259: 8, 262: 2, 277: 3, 284: 1, 322: tile, 323: tile, 325: len(data)}
    start = 8 + 2 + 12 * (len(tags) + 2) + 4
    entries = sorted([*((tag, 4, 1, value) for tag, value in tags.items()), (258, 3, 3, start), (324, 4, 1, start + 6)])
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(struct.pack("<HHII", *each) for each in entries)
    return head + bytes(4) + struct.pack("<3H", 8, 8, 8) + data


def deep(path: Path) -> None:
    """Brackets within brackets."""
    path.write_text("[" * 100_000)


def pipe(path: Path) -> None:
    """What nobody writes into."""
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to a device without an end."""
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    """Zeros, which take no room on the disk."""
    os.truncate(path, 200 << 20)
