"""Frozen features of image files, computed once and kept by content.

A store is a folder in the cache with one file per view. A file is a row of records (key, thumbnail, features as
float16, checksum) and only ever grows at its end, so a process that is killed loses at most the images it was busy
with: a record cut short is cut off by the next writer, one whose checksum is wrong is passed over. The key is a hash of
the image file's bytes: a changed file is computed again, an added one added, a renamed or doubled one costs nothing.

Views: `plain`, `flip` (mirrored), and two draws each of `weak` and `strong` (`osp.data.views`) that depend on the
file's content alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from osp.data import cache
from osp.data.decode import LARGEST_FILE
from osp.data.decode_pool import decode_all
from osp.data.source import Progress
from osp.data.views import Augmenter, Plan
from osp.errors import UserError, suggest
from osp.files import locked, reason
from osp.nets.pretrained import Backbone

VIEWS = ("plain", "flip", "weak", "weak2", "strong", "strong2")
VERSION = 1
"""Raised when the way views are made changes."""

THUMBNAIL = 17
"""Side of the small grey image that is kept beside the features, for finding duplicates."""

_KEY = 16
_AT_ONCE = 1024


@dataclass(frozen=True)
class Features:
    """The features of those files that could be read, in the order in which they were given."""

    files: tuple[str, ...]
    keys: tuple[str, ...]
    """Content of each file: equal for exact duplicates."""
    kept: np.ndarray
    """Positions of `files` among the files that were asked for."""
    unreadable: tuple[tuple[str, str], ...]
    """(file, reason) of the others."""
    stored: dict[str, tuple[np.ndarray, np.ndarray]]
    """By view: memory-mapped records of the whole store, and the row of each file."""

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, which: np.ndarray | slice | None = None, view: str = "plain") -> np.ndarray:
        """float16 features of some files (all by default), read from the disk now."""
        if view not in self.stored:
            raise ValueError(f"view={view!r} was not computed.{suggest(view, self.stored)}")
        records, places = self.stored[view]
        return _taken(records, "features", places if which is None else places[which])

    def thumbnails(self) -> np.ndarray:
        """uint8: each (plain) image in grey, very small."""
        records, places = self.stored["plain"]
        return _taken(records, "thumbnail", places)


@dataclass(frozen=True)
class Rows:
    """Features of some files, read from the disk when they are asked for: a pile may be larger than memory."""

    features: Features
    which: np.ndarray
    view: str = "plain"

    def __len__(self) -> int:
        return len(self.which)

    @property
    def shape(self) -> tuple[int, int]:
        """As of an array."""
        return len(self.which), int(self.features.stored[self.view][0].dtype["features"].shape[0])

    def __getitem__(self, chosen: np.ndarray | slice) -> np.ndarray:
        """float16 rows, a copy."""
        return self.features.rows(self.which[chosen], self.view)


def _taken(records: np.ndarray, field: str, places: np.ndarray) -> np.ndarray:
    """A copy of one field of some records.

    Pages of the file that were read for it are given back every so often: mapped pages count as memory of the process,
    and a look at every record would map the whole file.
    """
    found = np.empty((len(places), *records.dtype[field].shape), records.dtype[field].base)
    mapped: object = records.base
    for start in range(0, len(places), _AT_ONCE):
        found[start : start + _AT_ONCE] = records[field][places[start : start + _AT_ONCE]]
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
    return found


def compute(
    files: Sequence[str | Path],
    backbone: Backbone,
    views: Sequence[str] = ("plain",),
    progress: Progress | None = None,
) -> Features:
    """Features of the files: from the store where they are known, otherwise computed and stored.

    Call it for `plain` first, which is all that the instant answer needs, and for the other views afterwards.
    """
    for view in views:
        if view not in VIEWS:
            raise ValueError(f"view={view!r} is unknown.{suggest(view, VIEWS)}")
    paths = [os.path.abspath(file) for file in files]
    kind = backbone.name.partition(":")[0]  # hf:FOLDER: the same weights in another folder are the same network
    folder = cache.cache_dir() / f"features-{kind}-{_version(backbone)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stores = {view: _Store(folder / f"{view}.rows", backbone.feature_dim) for view in views}
        keys, reasons, states = _keys(folder / "files.jsonl", paths, progress)
        _fill(paths, keys, reasons, states, stores, backbone, progress)
        places = {view: (store.rows(), store.places) for view, store in stores.items()}
    except OSError as error:
        raise UserError(
            f"Features cannot be kept in {folder}: {reason(error)}. Set OSP_CACHE to a folder with room."
        ) from None
    kept = [i for i, key in enumerate(keys) if key is not None and i not in reasons]
    known = [keys[i] or b"" for i in kept]
    return Features(
        files=tuple(paths[i] for i in kept),
        keys=tuple(key.hex() for key in known),
        kept=np.array(kept, dtype=np.int64),
        unreadable=tuple((paths[i], reasons[i]) for i in sorted(reasons)),
        stored={
            view: (rows, np.array([place[key] for key in known], dtype=np.int64))
            for view, (rows, place) in places.items()
        },
    )


def _version(backbone: Backbone) -> str:
    return cache.digest(VERSION, cache.VERSION, backbone.checksum, backbone.size, backbone.mean, backbone.std)


class _Store:
    """The records of one view."""

    def __init__(self, path: Path, dim: int) -> None:
        self.path = path
        self.record = np.dtype(
            [
                ("key", "u1", _KEY),
                ("thumbnail", "u1", (THUMBNAIL, THUMBNAIL)),
                ("features", "<f2", dim),
                ("check", "<u4"),
            ]
        )
        self.places: dict[bytes, int] = {}
        self._read = 0
        self.read()

    def read(self) -> None:
        """Take note of the records written since the last look, by this process or another."""
        for start, records in self._new_records():
            for i, record in enumerate(records):
                if record["check"] == _checksum(record):
                    self.places[record["key"].tobytes()] = start + i
            self._read = start + len(records)

    def _new_records(self, chunk: int = 1024) -> Iterator[tuple[int, np.ndarray]]:
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self._read * self.record.itemsize)
            start = self._read
            while True:
                content = file.read(chunk * self.record.itemsize)
                whole = len(content) // self.record.itemsize
                if not whole:
                    return
                yield start, np.frombuffer(content, self.record, count=whole)
                start += whole

    def append(self, keys: Sequence[bytes], thumbnails: np.ndarray, features: np.ndarray) -> None:
        """Add records at the end."""
        records = np.zeros(len(keys), self.record)
        records["features"] = features
        records["thumbnail"] = thumbnails
        for record, key in zip(records, keys, strict=True):
            record["key"] = np.frombuffer(key, np.uint8)
            record["check"] = _checksum(record)
        with locked(self.path.with_suffix(".lock")), open(self.path, "ab") as file:
            file.truncate(file.tell() // self.record.itemsize * self.record.itemsize)  # what a killed process left
            file.seek(0, os.SEEK_END)
            file.write(records.tobytes())
        self.read()

    def rows(self) -> np.ndarray:
        """All records written so far, memory-mapped."""
        if not self._read:
            return np.empty(0, self.record)
        return np.memmap(self.path, self.record, mode="r", shape=(self._read,))


def _checksum(record: np.void) -> int:
    return zlib.crc32(record.tobytes()[:-4])


def _keys(
    book: Path, paths: Sequence[str], progress: Progress | None
) -> tuple[list[bytes | None], dict[int, str], dict[int, list[int]]]:
    """The content key of each file, remembered by path, size and times, the reasons why some have none, and the state
    in which each file was before its content was read."""
    known: dict[str, tuple[list[int], str]] = {}
    with contextlib.suppress(FileNotFoundError), open(book, encoding="ascii", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # a line cut short by a kill
                path, status, key = json.loads(line)
                if isinstance(key, str) and len(bytes.fromhex(key)) == _KEY:
                    known[path] = (status, key)
    keys: list[bytes | None] = []
    reasons: dict[int, str] = {}
    states: dict[int, list[int]] = {}
    new: list[str] = []

    def note() -> None:
        with locked(book.with_suffix(".lock")), open(book, "a+b") as end:
            if end.seek(0, os.SEEK_END):
                end.seek(-1, os.SEEK_END)
                if end.read(1) != b"\n":
                    end.write(b"\n")
            end.write("".join(new).encode("ascii"))
        new.clear()

    try:
        for position, path in enumerate(paths):
            try:
                status = states[position] = _status(path)
                if path in known and known[path][0] == status:
                    keys.append(bytes.fromhex(known[path][1]))
                    continue
                with open(path, "rb") as image:
                    key = hashlib.file_digest(image, lambda: hashlib.blake2b(digest_size=_KEY)).digest()
            except OSError as error:
                keys.append(None)
                reasons[position] = error.strerror or str(error)
                continue
            keys.append(key)
            new.append(json.dumps([path, status, key.hex()]) + "\n")
            if len(new) >= 200:
                note()
                if progress:
                    progress(position + 1, len(paths), "Reading files")
    finally:
        if new:
            note()
    return keys, reasons, states


def _status(path: str) -> list[int]:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a file that can be read as an image")  # opening a pipe would wait for a writer
    if status.st_size > LARGEST_FILE:  # before hours are spent on its checksum
        raise OSError(f"longer than {LARGEST_FILE >> 20:,} MB")
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _fill(
    paths: Sequence[str],
    keys: Sequence[bytes | None],
    reasons: dict[int, str],
    states: dict[int, list[int]],
    stores: dict[str, _Store],
    backbone: Backbone,
    progress: Progress | None,
) -> None:
    """Compute what the stores lack; reasons why a file gives no image are added to `reasons`."""
    wanted: dict[bytes, int] = {}  # one file for each content
    for i, key in enumerate(keys):
        if key is not None and any(key not in store.places for store in stores.values()):
            wanted.setdefault(key, i)
    todo = list(wanted.values())
    augmenter = Augmenter((3, backbone.size, backbone.size), backbone.mean, backbone.std)
    text = "Looking at photos" if len(stores) == 1 else f"Looking at photos ({', '.join(stores)})"
    failed: dict[bytes, str] = {}
    done = 0
    for images, skipped in decode_all([paths[i] for i in todo], backbone.size):
        span = range(done, done + len(images) + len(skipped))
        done = span.stop
        for position, why in skipped:
            failed[keys[todo[position]] or b""] = why
        missed = {position for position, _ in skipped}
        here = [todo[position] for position in span if position not in missed]
        for row, i in enumerate(here):
            if _status_or_none(paths[i]) != states[i]:  # these pixels may not be those of the key
                failed[keys[i] or b""] = "changed while it was being read; run again"
                here[row] = -1
        good = [row for row, i in enumerate(here) if i >= 0]
        pixels = torch.from_numpy(images[good])
        chunk = [keys[here[row]] or b"" for row in good]
        for view, store in stores.items():
            lacking = [row for row, key in enumerate(chunk) if key not in store.places]
            if lacking:
                names = [chunk[row] for row in lacking]
                made = make_view(pixels[lacking], names, view, augmenter)
                small = np.stack([thumbnail(image) for image in made.numpy()])
                store.append(names, small, backbone.features(made).numpy())
        if progress:
            progress(done, len(todo), text)
    for i, known in enumerate(keys):
        if known is not None and known in failed:
            reasons[i] = failed[known]


def _status_or_none(path: str) -> list[int] | None:
    try:
        return _status(path)
    except OSError:
        return None


def thumbnail(image: np.ndarray) -> np.ndarray:
    """A uint8 image 3×H×W in grey, each pixel the mean of its part."""
    grey = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).convert("L")
    return np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX))


def make_view(images: Tensor, keys: Sequence[bytes], view: str, augmenter: Augmenter) -> Tensor:
    """The view of uint8 images with these contents, as uint8; `weak` and `weak2` of an image always differ."""
    if view == "plain":
        return images
    if view == "flip":
        return images.flip(3)
    kind, second = view.rstrip("2"), view.endswith("2")
    plans = []
    for key in keys:
        seed = int.from_bytes(hashlib.blake2b(key + kind.encode(), digest_size=7).digest(), "little")
        pair = augmenter.plan(kind, 2, torch.Generator().manual_seed(seed))
        if second and _equal(pair[:1], pair[1:]):
            pair.draws["flip"][1] = ~pair.draws["flip"][1]
        plans.append(pair[1:] if second else pair[:1])
    draws = {name: torch.cat([plan.draws[name] for plan in plans]) for name in plans[0].draws}
    return augmenter.transform(images.contiguous(), Plan(plans[0].view, len(plans), draws))


def _equal(first: Plan, second: Plan) -> bool:
    return all(torch.equal(draw, second.draws[name]) for name, draw in first.draws.items())
