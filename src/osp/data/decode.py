"""One image file into size x size RGB pixels, whatever its format, depth, palette, transparency or orientation.

The file is also the program of the worker processes of `decode_pool` (`python decode.py`), so it imports nothing
of this package: a worker starts in a fraction of a second and needs neither torch nor a guarded main module.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF")
"""What a file may be, whatever its name says: Pillow knows others that call outside programs (EPS)."""

HEIF_EXTENSIONS = (".heic", ".heif")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""What such a file says of itself, from its eighth byte on."""

MAX_PIXELS = 178_956_970  # above this an image counts as a decompression bomb (Pillow's own limit)

MAX_BYTES = 600 << 20
"""Of memory for one image, with what it takes to turn it into 8-bit color: 150 million pixels of plain color, 20
million of floating-point grey. Many workers decode at once, and a file of 20 kB can hold any of them."""

PIXEL_BYTES = {"1": 5, "L": 5, "P": 5, "RGB": 4, "CMYK": 8, "YCbCr": 8, "LAB": 8, "HSV": 8}
"""By mode; deep grey goes through 64-bit numbers, and what is transparent is laid on white in a second image."""
DEEP, TRANSPARENT = 29, 16

LARGEST_FILE = 1 << 30
MOST_SCANS, SCANNED = 100, 2_000_000_000
"""Of a JPEG: passes over its pixels, and the pixels that all of them pass; ten passes are usual, 75 bytes make one."""
LARGEST_TILE = 1 << 22
"""Pixels of a tile of a TIFF, which may be larger than a small image; no tile needs four times the image's pixels."""
SECONDS, WORKER_BYTES = 30, 3 << 29
"""Of computing and memory for one image in a worker process, where the system can limit them: for what the limits above
do not foresee."""

_ORIENTATION = 0x0112
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")
"""Of a JPEG: begins a part that states its length; the others stand alone, or are data."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Unreadable(Exception):
    """The reason why a file gives no image."""


Place = str | bytes | Sequence[Any]
"""An image file: its path, its content, or (path, offset, length) of a file within another."""


def decode(place: Place, size: int, most_pixels: int = MAX_PIXELS, whole: bool = False) -> np.ndarray:
    """The file's (first) image as uint8 3 x size x size: the middle square, antialiased, on white where transparent.

    More pixels than `most_pixels` are refused before they are unpacked. With `whole` nothing is cut off: the longer
    side has `size` pixels, or fewer where the image is smaller.
    """
    try:
        length = os.path.getsize(place) if isinstance(place, str) else len(place)
        if not 0 < length <= LARGEST_FILE:
            raise Unreadable("empty file (0 bytes)" if not length else f"longer than {LARGEST_FILE >> 20:,} MB")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata: either the pixels can be read or they cannot
            with _open(place) as image:
                if image.width * image.height > most_pixels:
                    raise Unreadable(f"absurdly large ({image.width} x {image.height} pixels)")
                _check_cost(image)
                image.draft(None, (2 * size, 2 * size))  # JPEG: decode at 1/2, 1/4 or 1/8 if that leaves twice the size
                each = TRANSPARENT if "transparency" in image.info else PIXEL_BYTES.get(image.mode, TRANSPARENT)
                each = DEEP if image.mode.startswith(("I", "F")) else each
                if image.width * image.height * each > MAX_BYTES:
                    raise Unreadable(f"too large ({image.width} x {image.height} pixels of kind {image.mode})")
                image.load()
                pixels = fit_image(image, size, whole)
    except Unreadable:
        raise
    except UnidentifiedImageError:
        raise Unreadable("not an image of a known format") from None
    except Image.DecompressionBombError:
        raise Unreadable(f"absurdly large (more than {MAX_PIXELS} pixels)") from None
    except MemoryError:
        raise Unreadable("needs more memory than there is") from None
    except Exception as error:  # decoders fail with OSError, SyntaxError, ValueError, struct.error, ...
        said = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise Unreadable(said or type(error).__name__) from None
    return pixels


def fit_image(image: Image.Image | np.ndarray, size: int, whole: bool = False) -> np.ndarray:
    """An image as training sees it, uint8 3 x size x size: upright, on white where transparent, the middle square
    resized, bicubic and antialiased.

    An array is uint8 H x W (grey), H x W x 3 or H x W x 4 (transparent). Of a JPEG file `decode` may read fewer pixels
    than a full-size array of it holds, so that single grey levels differ; to have the very pixels, pass the file.
    """
    if isinstance(image, np.ndarray):
        image = Image.fromarray(np.ascontiguousarray(image))
    turn = _turn(image)
    square = _to_rgb(image, size, whole)
    if turn is not None:
        square = square.transpose(turn)
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def _check_cost(image: Image.Image) -> None:
    """Refuse files of few pixels that take long, or much memory, to decode."""
    pixels = image.width * image.height
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        tile = int(tags.get(_TILE_WIDTH, 0)) * int(tags.get(_TILE_LENGTH, 0))
        if tile > max(LARGEST_TILE, 4 * pixels):
            raise Unreadable(f"too large (a tile of {tile:,} pixels)")
    if image.format in ("JPEG", "MPO"):
        scans = _scans(image.fp, MOST_SCANS)  # type: ignore[attr-defined]
        if scans > max(20, min(MOST_SCANS, SCANNED // pixels)):
            raise Unreadable(f"it takes too long to decode ({scans} scans)")
        parts = [(across, down) for _, across, down, _ in image.layer]  # type: ignore[attr-defined]
        most = max(across for across, _ in parts) * max(down for _, down in parts)
        kept = 2 * pixels * sum(across * down for across, down in parts) // most  # 16 bits of each until the last scan
        if scans > 1 and kept > MAX_BYTES:
            raise Unreadable(f"too large ({image.width} x {image.height} pixels in {scans} scans)")


def _scans(file: IO[bytes], most: int) -> int:
    """Scans of a JPEG file, counted up to a few more than `most`."""
    before = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(before)
    place, found = 2, content.count(b"\xff\xda")
    if found <= 1:
        return found
    found = 0  # a thumbnail, or a film behind the image, may have looked like some
    while found <= most and (marker := _MARKER.search(content, place)):
        kind, start = content[marker.start() + 1], marker.end()
        if kind in (0xD8, 0xD9):
            break
        found += kind == 0xDA
        place = start + int.from_bytes(content[start : start + 2], "big")
    return found


def _open(place: Place) -> Image.Image:
    formats: tuple[str, ...] = FORMATS
    if isinstance(place, str):
        file: str | io.BytesIO = place
        heif = place.lower().endswith(HEIF_EXTENSIONS)
    else:
        content = place if isinstance(place, bytes) else _within(*place)
        file, heif = io.BytesIO(content), content[4:8] == b"ftyp" and content[8:12] in HEIF_BRANDS
    if heif:
        try:
            import pillow_heif
        except ImportError:
            raise Unreadable("HEIC needs the package pillow-heif: pip install pillow-heif") from None
        pillow_heif.register_heif_opener()
        formats = (*FORMATS, "HEIF")
    return Image.open(file, formats=formats)


def _within(path: str, offset: int, length: int) -> bytes:
    """A part of a file, which must be whole."""
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(length)
    if len(content) < length or not length:
        raise Unreadable("empty file (0 bytes)" if not length else "cut short")
    return content


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How to set the image upright. Asked after loading: TIFF and HEIF turn themselves and then say so."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata is no reason to lose the pixels
        return None


def _to_rgb(image: Image.Image, size: int, whole: bool) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_to_8_bit(np.asarray(image)))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        image = white
    if image.mode != "RGB":
        image = image.convert("RGB")
    if whole:
        image.thumbnail((size, size), Image.Resampling.BICUBIC)
        return image
    side = min(image.size)
    if image.size == (size, size):
        return image
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def _to_8_bit(values: np.ndarray) -> np.ndarray:
    """Deep grey to 0..255: by its range (1 for fractions, 8, 16 or 32 bits), not by its brightest pixel."""
    if values.dtype == np.uint16:
        return (values >> 8).astype(np.uint8)  # as Pillow does for deep color
    numbers = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    top = numbers.max()
    if values.dtype.kind == "f" and top <= 1:
        scale = 255.0
    else:
        scale = 1.0 if top < 256 else 1 / 256 if top < 65536 else 1 / 2**24 if top < 2**32 else 255 / top
    return np.clip(numbers * scale, 0, 255).astype(np.uint8)


TIMED = False  # whether this is a worker process that may be ended by its clock


def decode_many(
    paths: Sequence[Place], size: int, most_pixels: int = MAX_PIXELS, whole: bool = False
) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The images of those files that can be read, in order, and (position, reason) of those that cannot.

    With `whole` there may be one file only: nothing is cut off to make images of one shape.
    """
    images, skipped = [], []
    for position, path in enumerate(paths):
        if TIMED:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # counts computing, not waiting; its signal ends the process
        try:
            images.append(decode(path, size, most_pixels, whole))
        except Unreadable as reason:
            skipped.append((position, str(reason)))
    return np.stack(images) if images else np.empty((0, 3, size, size), np.uint8), skipped


def resize_batch(images: np.ndarray, size: int) -> np.ndarray:
    """Resize uint8 N x C x H x W images, antialiased, C being 1 or 3."""
    count, channels = images.shape[:2]
    if images.shape[2:] == (size, size):
        return np.ascontiguousarray(images)
    out = np.empty((count, channels, size, size), np.uint8)
    for index in range(count):
        pixels = images[index, 0] if channels == 1 else images[index].transpose(1, 2, 0)
        small = Image.fromarray(np.ascontiguousarray(pixels)).resize((size, size), Image.Resampling.BICUBIC)
        out[index] = np.asarray(small) if channels == 1 else np.asarray(small).transpose(2, 0, 1)
    return out


def send(stream: IO[bytes], header: Any, body: bytes = b"") -> None:
    """Write one message of the workers' protocol: a line of JSON, raw bytes."""
    stream.write(json.dumps([header, len(body)]).encode() + b"\n")
    stream.write(body)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Any, bytes]:
    """Read one message; EOFError where the other side has gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    header, length = json.loads(line)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return header, body


def _work() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; ours says when to end
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + WORKER_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while True:
        try:
            (places, *how), content = receive(sys.stdin.buffer)
        except EOFError:
            return
        images, skipped = decode_many([content if place is None else place for place in places], *how)
        send(sys.stdout.buffer, [skipped, images.shape], images.tobytes())


if __name__ == "__main__":
    TIMED = hasattr(signal, "setitimer")
    _work()
