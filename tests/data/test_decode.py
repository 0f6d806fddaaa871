"""Every kind of image file becomes upright RGB, and what is no image is refused with its reason."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.bombs import progressive, tiled
from osp.data.decode import MAX_PIXELS, Unreadable, decode, resize_batch


def _photo(side: int = 64) -> Image.Image:
    """Smooth colors, different in each corner, so that a lossy format keeps them and a turn shows."""
    y, x = np.mgrid[0:side, 0:side] / side
    return Image.fromarray((np.stack([x, y, (1 - x) * y], axis=-1) * 220 + 15).astype(np.uint8))


def _pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1).astype(int)


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("a.jpg", {"quality": 95}, 6),
        ("a.JPEG", {"quality": 95}, 6),
        ("a.png", {}, 0),
        ("a.webp", {"lossless": True}, 0),
        ("a.bmp", {}, 0),
        ("a.tif", {}, 0),
        ("a.tiff", {"compression": "tiff_lzw"}, 0),
        ("a.gif", {}, 40),
    ],
)
def test_each_format_gives_its_pixels(tmp_path: Path, name: str, options: dict[str, Any], tolerance: int) -> None:
    _photo().save(tmp_path / name, **options)
    assert np.abs(decode(str(tmp_path / name), 64) - _pixels(_photo())).max() <= tolerance


def test_heic_is_read_with_pillow_heif(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(_photo()).save(tmp_path / "a.heic", quality=95)
    assert np.abs(decode(str(tmp_path / "a.heic"), 64) - _pixels(_photo())).mean() < 4


def test_the_first_frame_of_an_animation_is_taken(tmp_path: Path) -> None:
    red, blue = (Image.new("RGB", (16, 16), color) for color in ("red", "blue"))
    red.save(tmp_path / "a.gif", save_all=True, append_images=[blue])
    red.save(tmp_path / "a.webp", save_all=True, append_images=[blue], lossless=True)
    for name in ("a.gif", "a.webp"):
        assert decode(str(tmp_path / name), 16).mean(axis=(1, 2)).tolist() == [255, 0, 0]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_grey_keeps_its_brightness(tmp_path: Path, suffix: str) -> None:
    deep = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / f"a{suffix}")
    out = decode(str(tmp_path / f"a{suffix}"), 32)
    np.testing.assert_array_equal(out, np.broadcast_to(deep >> 8, (3, 32, 32)))


def test_floating_point_grey_in_0_to_1_keeps_its_brightness(tmp_path: Path) -> None:
    Image.fromarray(np.full((16, 16), 0.5, np.float32)).save(tmp_path / "a.tif")
    assert set(np.unique(decode(str(tmp_path / "a.tif"), 16))) == {127}


def test_16_bit_color_is_read(tmp_path: Path) -> None:
    """Written by hand: Pillow cannot write it."""
    row = b"\0" + struct.pack(">HHH", 0xFFFF, 0x8000, 0) * 8
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * 8)),
        (b"IEND", b""),
    ]
    raw = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + raw)
    assert decode(str(tmp_path / "a.png"), 8)[:, 0, 0].tolist() == [255, 128, 0]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_grey_palette_and_print_colors_become_rgb(tmp_path: Path, mode: str) -> None:
    image = _photo().convert(mode)
    path = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png")
    image.save(path)
    assert np.abs(decode(str(path), 64) - _pixels(Image.open(path))).max() == 0


def test_a_cmyk_jpeg_has_the_colors_of_its_original(tmp_path: Path) -> None:
    _photo().convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert np.abs(decode(str(tmp_path / "a.jpg"), 64) - _pixels(_photo())).mean() < 6


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_transparency_is_laid_on_white(tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / "a.png")
    if mode in ("RGBA", "LA"):
        Image.new(mode, (8, 8), (0, 0, 0, 0) if mode == "RGBA" else (0, 0)).save(path)
    else:
        black = {"P": 0, "RGB": (0, 0, 0), "L": 0}[mode]
        Image.new(mode, (8, 8)).save(path, transparency=black)
    assert decode(path, 8).min() == 255


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_exif_orientation_sets_the_image_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's numbers of the inverse turns
    image = _photo().crop((0, 0, 64, 48))
    stored = image if orientation == 1 else image.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {} if suffix in (".png", ".tif") else {"quality": 95}
    stored.save(tmp_path / f"a{suffix}", exif=exif, **options)
    assert np.abs(decode(str(tmp_path / f"a{suffix}"), 48) - _pixels(image.crop((8, 0, 56, 48)))).mean() < 4


def test_a_wide_photo_loses_its_sides_and_is_not_squeezed(tmp_path: Path) -> None:
    wide = Image.new("RGB", (300, 100), "white")
    wide.paste((255, 0, 0), (100, 0, 200, 100))
    wide.save(tmp_path / "a.png")
    out = decode(str(tmp_path / "a.png"), 20)
    assert np.abs(out.mean(axis=(1, 2)) - [255, 0, 0]).max() < 4  # at the border the filter sees a little white


def test_resizing_is_antialiased(tmp_path: Path) -> None:
    """Fine black and white stripes become grey, not the stripes that nearest-neighbor would pick."""
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "a.png")
    small = decode(str(tmp_path / "a.png"), 16)
    assert 120 < small.min() <= small.max() < 136
    small = resize_batch(stripes[None, None], 16)
    assert small.shape == (1, 1, 16, 16)
    assert 120 < small.min() <= small.max() < 136


def test_a_large_jpeg_looks_as_if_decoded_in_full(tmp_path: Path) -> None:
    """JPEGs are decoded at a fraction of their size first: the shortcut must not show."""
    _photo(1024).save(tmp_path / "a.jpg", quality=95)
    with Image.open(tmp_path / "a.jpg") as full:
        slow = _pixels(full.resize((32, 32), Image.Resampling.BICUBIC))
    assert np.abs(decode(str(tmp_path / "a.jpg"), 32) - slow).max() <= 3


def _jpeg() -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "JPEG")
    return stream.getvalue()


def _bomb() -> bytes:
    """A small PNG that promises 50,000 x 50,000 pixels."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(9999)))]
    raw = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + raw


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.jpg": (lambda: b"", "empty file"),
    "text.jpg": (lambda: b"this is a shopping list", "not an image"),
    "cut.jpg": (lambda: _jpeg()[:5000], "truncated"),
    "bomb.png": (_bomb, "absurdly large"),
    "script.png": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nquit\n", "not an image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    make, reason = BAD[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(Unreadable, match=reason):
        decode(str(tmp_path / name), 32)


def test_an_image_just_below_pillows_error_but_above_its_warning_is_silent(tmp_path: Path) -> None:
    wide = Image.new("1", (30_000, 3_500))
    assert 89_478_485 < wide.width * wide.height < MAX_PIXELS
    wide.save(tmp_path / "a.png")
    assert decode(str(tmp_path / "a.png"), 8).max() == 0


def test_a_missing_file_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="No such file"):
        decode("/nonexistent/a.jpg", 8)


def test_a_jpeg_of_many_scans_is_refused_before_it_costs_minutes() -> None:
    assert decode(progressive(64, 90), 16).shape == (3, 16, 16)
    with pytest.raises(Unreadable, match="too long to decode"):
        decode(progressive(64, 200), 16)
    with pytest.raises(Unreadable, match="too long to decode"):
        decode(progressive(7000, 60), 16)


def test_what_lies_before_and_behind_a_jpeg_is_no_scan() -> None:
    """A thumbnail in its notes, a film after it: neither is decoded."""
    content = progressive(64, 1)
    notes = b"\xff\xda" * 150
    noted = content[:2] + b"\xff\xe5" + (len(notes) + 2).to_bytes(2, "big") + notes + content[2:]
    assert decode(noted + b"\xff\xda" * 1000, 16).shape == (3, 16, 16)
    hidden = progressive(64, 200)
    for mark in (b"\xff\x01\xff\xf0", b"\xff\xff\xff", b"\xff\xd0\xff\xff"):  # what stands alone hides nothing
        place = hidden.index(b"\xff\xda")
        with pytest.raises(Unreadable):
            decode(hidden[:place] + mark + hidden[place:], 16)


def test_a_tile_that_is_much_larger_than_its_tiff_is_refused() -> None:
    assert decode(tiled(16, 256), 16).shape == (3, 16, 16)
    with pytest.raises(Unreadable, match="tile of 9,000,000 pixels"):
        decode(tiled(16, 3000), 16)
