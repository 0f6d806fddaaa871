"""MNIST: 28x28 handwritten digits in four idx files, plain or gzipped (LeCun et al., 1998)."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

from osp.data import cache
from osp.data.images import ImageSet
from osp.data.published import Published, check_labels, resized
from osp.data.source import Description, Remote, Request, SplitDefaults
from osp.errors import UserError

CLASSES = tuple(str(digit) for digit in range(10))
ADDRESS, PLACE = "https://ossci-datasets.s3.amazonaws.com/mnist", "MNIST/raw"
PARTS = {
    # images, labels, and the MD5 of their content without gzip, which compresses differently from tool to tool
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
LARGEST = 1 << 31
RATIO = 100  # how much smaller gzip may make an idx file beyond 64 MB: MNIST's become five times smaller, a bomb 1,000


class Mnist(Published):
    """The four files, under the names that they have here and there."""

    def has(self, folder: Path) -> bool:
        return len(_files(folder)) == len(PARTS)

    def md5_in(self, folder: Path) -> dict[str, str]:
        return {path.name: md5 for path, md5 in zip(_files(folder), PARTS.values(), strict=True)}

    def md5_of(self, path: Path, compute: bool) -> str | None:
        return cache.md5_of(path, lambda: read_idx(path, 3 if "images" in path.name else 1)[0], compute)

    def read(self, folder: Path, request: Request) -> tuple[ImageSet, ImageSet | None]:
        """Digits are neither mirrored nor cut out: that would make others of them."""
        files, sets = _files(folder), []
        for path, labels_path in (files[:2], files[2:]):
            images, labels = read_idx(path, 3)[1], read_idx(labels_path, 1)[1]
            if len(images) != len(labels):
                raise UserError(
                    f"{path} holds {len(images):,} images, but {labels_path} {len(labels):,} labels. Fetch both again."
                )
            pixels, numbers = resized(images[:, None], request.size), check_labels(labels, 10, labels_path)
            facts = (CLASSES, (0.1307,), (0.3081,))
            sets.append(ImageSet(request.name, pixels, numbers, *facts, mirror=False, cutout=False))
        return sets[0], sets[1]

    def description(self, folder: Path, request: Request) -> Description:
        files = _files(folder)
        train, test = (check_labels(read_idx(path, 1)[1], 10, path) for path in (files[1], files[3]))
        with _opened(files[0]) as file:
            _, height, width = _shape(files[0], file.read(16), 3)
        shape = (1, request.size, request.size) if request.size else (1, height, width)
        return Description.of(request.name, CLASSES, train, test, shape=shape)


def _files(folder: Path) -> list[Path]:
    """Those of the four that are there."""
    found = []
    for part in PARTS:
        names = (part, part + ".gz", part.replace("-idx", ".idx"), part.replace("-idx", ".idx") + ".gz")
        found += [folder / name for name in names if (folder / name).is_file()][:1]
    return found


def read_idx(path: Path, dims: int) -> tuple[bytes, np.ndarray]:
    """An idx file of bytes with this many dimensions, plain or gzipped: its content, and the array in it."""
    header_size = 4 + 4 * dims
    try:
        with _opened(path) as file:
            header = file.read(header_size)
            shape = _shape(path, header, dims)
            expected = int(np.prod(shape, dtype=object))
            if expected > LARGEST:
                raise UserError(f"{path} claims to hold {expected:,} bytes: it is damaged. Fetch it again.")
            _check_size(path, header_size + expected)
            body = file.read(expected + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        size = path.stat().st_size
        raise UserError(f"{path} ({size:,} bytes) is cut short or damaged: {error}. Fetch it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(body) != expected:
        found = f"{header_size + len(body):,}" if len(body) < expected else "more"
        raise UserError(
            f"{path} should hold {header_size + expected:,} bytes ({' x '.join(map(str, shape))} and a header), "
            f"but {found} were found. Fetch it again."
        )
    return header + body, np.frombuffer(body, np.uint8).reshape(shape)


def _check_size(path: Path, expected: int) -> None:
    """Refuse a header that promises more than the file has, before there is room made for it."""
    size = os.path.getsize(path)
    if path.suffix != ".gz" and size != expected:
        raise UserError(
            f"{path} should hold {expected:,} bytes by its header, but {size:,} were found. Fetch it again."
        )
    if path.suffix == ".gz" and expected > max(RATIO * size, 64 << 20):
        raise UserError(f"{path} ({size:,} bytes) claims to hold {expected:,} bytes: it is damaged. Fetch it again.")


def _shape(path: Path, header: bytes, dims: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * dims:
        raise UserError(
            f"{path} should begin with {4 + 4 * dims} bytes of header, but has {len(header)}. Fetch it again."
        )
    if header[:4] != bytes((0, 0, 8, dims)):
        raise UserError(f"{path} is not an idx file of bytes with {dims} dimension(s). Fetch it again.")
    shape = tuple(int.from_bytes(header[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims))
    if 0 in shape:
        raise UserError(f"{path} holds no image ({' x '.join(map(str, shape))}). Fetch it again.")
    return shape


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb"))


MNIST = Mnist(
    remotes=(
        Remote(f"{ADDRESS}/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", PLACE),
        Remote(f"{ADDRESS}/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", PLACE),
        Remote(f"{ADDRESS}/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", PLACE),
        Remote(f"{ADDRESS}/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", PLACE),
    ),
    folders=(PLACE, "mnist", "MNIST", "mnist/raw"),
)

SOURCE = MNIST.source(
    grey=True,
    class_sizes=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    within=SplitDefaults(tuple(range(6)), 10, unlabeled=30_000, ood_ratio=0.6, val_per_class=50),  # Table 3
)
