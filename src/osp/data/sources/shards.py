"""Unsorted images in tar shards, as WebDataset has them: for a pool that is larger than memory.

The images stay in the shards and are read by row; other files beside them, such as captions, are passed over. The first
look at a folder goes through all shards, checks every image by decoding it, and writes an index (offset and length, 16
bytes per image) into the cache, where it is mapped from then on. What is no readable image is left out. Nothing is
unpacked, no name in a shard is used as a path, and links or devices in one are refused. Copies are not looked for.
"""

from __future__ import annotations

import io
import os
import tarfile
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.decode import Unreadable, decode
from osp.data.decode_pool import decode_all
from osp.data.folders import EXTENSIONS, File, check_root
from osp.data.from_files import SIZE
from osp.data.images import ByRow, ImageSet, PixelSummary, moments
from osp.data.source import Progress, Request, Source, always
from osp.errors import UserError, first_few
from osp.files import reason

PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
LARGEST_FILE = 256 << 20  # bytes of an image file above which it is not read
LARGEST_HEADER = 1 << 20  # bytes of what a tar file says of one file in it, its name among them
OPEN_FILES = 64
HOW = "your own unsorted images in tar shards, beside another set: ood_data 'shards', ood_dir their folder"
LISTED = 100  # files that could not be read and are named; of the others only the number is kept


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """All images are training images, 32x32 if no size is given; where each lies is found at the first call."""
    check_root(request.root, must_exist=True)
    shards, size = find_shards(request.root), request.size or SIZE
    mark = cache.digest(
        *((os.path.basename(shard.path), shard.size, shard.modified, shard.changed) for shard in shards)
    )

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        return _index(writer, shards, size, request.progress)

    entry = cache.cached("shards", f"{request.root}|{size}", mark, (16,), build)
    notes = entry.notes
    skipped = tuple((str(name), str(reason)) for name, reason in notes["skipped"])
    if not len(entry.images):
        why = "".join(f" ({name}: {reason})" for name, reason in skipped[:1])
        raise UserError(f"There is no readable image in the shards of {request.root}{why}.")
    if notes["unreadable"]:
        named = first_few([f"{name}: {reason}" for name, reason in skipped])
        warnings.warn(
            f"{notes['unreadable']} images in the shards of {request.root} could not be read and were left out "
            f"({named}).",
            stacklevel=2,
        )
    places = entry.images.view("<i8")  # rows of 16 bytes: offset and length
    images = ShardImages(shards, np.array(notes["counts"], np.int64), places, size).as_array()
    facts = tuple(notes["mean"]), tuple(notes["std"])
    return ImageSet(request.name, images, None, (), *facts, skipped=skipped, pixels=str(notes["pixels"])), None


def find_shards(root: Path) -> list[File]:
    """The tar files in a folder, by name; links lead to what they lead to."""
    names = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith("."))
    packed = [name for name in names if name.lower().endswith(PACKED)]
    if packed:
        raise UserError(
            f"{root / packed[0]} is compressed: images cannot be read by row. Decompress it to a .tar file."
        )
    paths = [root / name for name in names if name.lower().endswith(".tar")]
    if not paths:
        raise UserError(f"There is no shard in {root}: files NAME.tar that hold images.")
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is no file; shards are tar files.")
    return [File.at(str(path)) for path in paths]


def _index(writer: cache.ArrayWriter, shards: Sequence[File], size: int, progress: Progress | None) -> dict[str, Any]:
    """Go through all shards once; one shard's list is in memory at a time."""
    summary = PixelSummary()
    counts: list[int] = []
    skipped: list[tuple[str, str]] = []
    unreadable = done = 0
    total = sum(shard.size for shard in shards)
    for shard in shards:
        names, places = _list(shard)
        begun, row, found = writer.rows, 0, os.path.basename(shard.path)
        for images, missing in decode_all([(shard.path, *place) for place in places], size):
            wrong = dict(missing)
            rows = range(row, row + len(images) + len(missing))
            kept = [places[i] for i in rows if i not in wrong]
            writer.append(np.array(kept, "<i8").reshape(-1, 2).view(np.uint8))
            skipped += [(f"{found}/{names[i]}", reason) for i, reason in missing][: max(LISTED - len(skipped), 0)]
            summary.update(images)
            row, unreadable = rows.stop, unreadable + len(missing)
            if progress:
                progress(done + shard.size * row // max(len(places), 1), total, f"Indexing {found}")
        counts.append(writer.rows - begun)
        done += shard.size
    mean, std = moments(summary.levels)
    facts = {"mean": mean, "std": std, "pixels": summary.hexdigest()}
    return {"counts": counts, "skipped": skipped, "unreadable": unreadable, **facts}


def _list(shard: File) -> tuple[list[str], list[tuple[int, int]]]:
    """Names of the images in a shard, and where each lies, from the headers alone."""
    names, places = [], []
    try:
        with _Headers(io.FileIO(shard.path)) as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else the headers of all files stay in memory
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise UserError(
                        f"{shard.path} holds {member.name!r}, a link, device or sparse file. Pack it again."
                    )
                if member.offset_data + member.size > shard.size:
                    raise UserError(f"{shard.path} ({shard.size:,} bytes) is cut short. Fetch or pack it again.")
                if member.size > LARGEST_FILE:
                    raise UserError(
                        f"{shard.path} holds {member.name!r} of {member.size:,} bytes: no image to train on."
                    )
                if member.name.lower().endswith(EXTENSIONS):
                    names.append(member.name)
                    places.append((member.offset_data, member.size))
    except OSError as error:
        raise UserError(f"{shard.path} cannot be read: {reason(error)}.") from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise UserError(f"{shard.path} is damaged or no tar file: {error}. Fetch or pack it again.") from None
    return names, places


class _Headers(io.BufferedReader):
    """A shard of which only headers are read, so that a name of gigabytes is none."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of more than {LARGEST_HEADER >> 20} MB")
        return super().read(size)


class ShardImages(ByRow):
    """Images of shards by row, decoded when they are asked for."""

    def __init__(self, shards: Sequence[File], counts: np.ndarray, places: np.ndarray, size: int) -> None:
        super().__init__((len(places), 3, size, size))
        self._shards, self._places, self._size = shards, places, size
        self.starts = np.cumsum(counts) - counts
        self._open: OrderedDict[int, int] = OrderedDict()

    def take(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        owners = np.searchsorted(self.starts, rows, side="right") - 1
        for position in np.argsort(rows, kind="stable"):  # as they lie on the disk
            out[position] = self._image(int(owners[position]), int(rows[position]))
        return out

    def _image(self, owner: int, row: int) -> np.ndarray:
        offset, length = (int(number) for number in self._places[row])
        try:
            return decode(_read(self._file(owner), length, offset), self._size)
        except (OSError, Unreadable) as error:
            raise UserError(
                f"{self._shards[owner].path}: the image at byte {offset} can no longer be read ({error}). Put the "
                "shard back as it was, or start a new run."
            ) from None

    def _file(self, owner: int) -> int:
        """The open shard, of which only some are kept open."""
        if owner in self._open:
            self._open.move_to_end(owner)
            return self._open[owner]
        shard = self._shards[owner]
        file = os.open(shard.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        status = os.fstat(file)
        if (status.st_size, status.st_mtime_ns, status.st_ctime_ns) != shard[1:4]:
            os.close(file)
            raise UserError(
                f"{shard.path} has changed since it was opened. Start a new run with the shards as they are now."
            )
        self._open[owner] = file
        if len(self._open) > OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return file

    def __del__(self) -> None:
        for file in getattr(self, "_open", {}).values():
            os.close(file)


def _read(file: int, length: int, offset: int) -> bytes:
    """Bytes from the middle of an open file."""
    if hasattr(os, "pread"):
        return os.pread(file, length, offset)
    os.lseek(file, offset, os.SEEK_SET)  # Windows
    return os.read(file, length)


SOURCE = Source(
    load=load,
    look=always("any folder of tar files", None, None, (3, SIZE, SIZE), HOW),
    own_folder=True,
    unsorted=True,
)
