"""Arrays made once from many files and memory-mapped ever after, and checksums computed once.

An entry is a `.npy` file and a `.json` beside it, written last: without it, or where it does not fit the array, the
entry does not exist and is made again. Its name holds what it was made from, so a changed source is a new entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from osp.errors import UserError, user_path
from osp.files import locked, reason, replace

VERSION = 1  # raised when the way images are decoded or resized changes, so that old entries are made again


def cache_dir() -> Path:
    """OSP_CACHE, else the user's cache folder: never beside the data, which may be read-only."""
    chosen = os.environ.get("OSP_CACHE")
    if chosen:
        return user_path(chosen).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("osp")) / "decoded"


def digest(*parts: object) -> str:
    """A short name for a key."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


class Cached(NamedTuple):
    """A memory-mapped array and what was noted while it was made."""

    images: np.ndarray
    notes: dict[str, Any]


class ArrayWriter:
    """Append rows to a `.npy` file whose length is not known in advance, holding none of them in memory."""

    def __init__(self, path: Path, row_shape: tuple[int, ...]) -> None:
        self.rows = 0
        self._shape = row_shape
        self._file = open(path, "wb")  # noqa: SIM115 - closed in close()
        self._header(0)
        self._start = self._file.tell()

    def append(self, rows: np.ndarray) -> None:
        """Add uint8 rows."""
        if rows.dtype != np.uint8 or rows.shape[1:] != self._shape:
            raise ValueError(f"rows of {rows.shape[1:]} {rows.dtype}, expected {self._shape} uint8")
        self._file.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Write the true length into the header (numpy leaves room for it) and see the file safely on the disk."""
        try:
            self._file.seek(0)
            self._header(self.rows)
            if self._file.tell() != self._start:
                raise RuntimeError("numpy changed the length of its header")
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def _header(self, rows: int) -> None:
        description = {"descr": "|u1", "fortran_order": False, "shape": (rows, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, description)


def cached(
    label: str, key: str, fingerprint: str, row_shape: tuple[int, ...], build: Callable[[ArrayWriter], dict[str, Any]]
) -> Cached:
    """The array made by `build` from sources with this fingerprint: from the disk if it was made before.

    `key` names the place (folder, size): an entry of the same key with another fingerprint is out of date and goes.
    """
    folder, stem = cache_dir(), f"{label}-{digest(VERSION, key)}"
    array, notes = folder / f"{stem}-{fingerprint[:16]}.npy", folder / f"{stem}-{fingerprint[:16]}.json"
    if found := _open(array, notes, row_shape):
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{stem}.lock"):
            if found := _open(array, notes, row_shape):  # another process made it while this one waited
                return found
            _make(array, notes, row_shape, build)
            _drop_others(folder, stem, keep=array.stem)
            found = _open(array, notes, row_shape)
    except OSError as error:
        raise UserError(
            f"Decoded images cannot be kept in {folder}: {reason(error)}. Set OSP_CACHE to a folder with room."
        ) from None
    if found is None:
        raise UserError(f"Decoded images in {folder} cannot be read back. Set OSP_CACHE to another folder.")
    return found


def _make(array: Path, notes: Path, row_shape: tuple[int, ...], build: Callable[[ArrayWriter], dict[str, Any]]) -> None:
    partial = array.with_suffix(f".{uuid.uuid4().hex}.partial")  # process numbers repeat where machines share a disk
    try:
        writer = ArrayWriter(partial, row_shape)
        try:
            content = build(writer)
        finally:
            writer.close()
        content = {**content, "rows": writer.rows, "bytes": partial.stat().st_size, "crc": _checksum(partial)}
        os.replace(partial, array)
        replace(notes, json.dumps(content).encode())
    finally:
        partial.unlink(missing_ok=True)


def _open(array: Path, notes: Path, row_shape: tuple[int, ...]) -> Cached | None:
    """The entry, or None where it is missing, cut short or damaged."""
    try:
        content = json.loads(notes.read_text("utf-8"))
        if array.stat().st_size != content["bytes"] or _checksum(array) != content["crc"]:
            return None
        images = np.lib.format.open_memmap(array, mode="r")
        if images.shape != (content["rows"], *row_shape) or images.dtype != np.uint8:
            return None
        return Cached(images, content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checksum(path: Path) -> int:
    """Of the whole file, each time it is opened: a hundredth of what making it took."""
    total = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def _drop_others(folder: Path, stem: str, keep: str) -> None:
    """Remove entries that are out of date, and parts left by a process that was killed."""
    for old in folder.glob(f"{stem}-*"):
        with contextlib.suppress(OSError):  # Windows keeps files that are in use
            left_over = old.suffix == ".partial" and time.time() - old.stat().st_mtime > 3600
            if left_over or not old.name.startswith(keep):
                old.unlink()


def md5(path: Path) -> str:
    """A file's MD5, which publishers give."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def md5_of(path: Path, content: Callable[[], bytes] | None = None, compute: bool = True) -> str | None:
    """A file's MD5, remembered by path, size and times of change; of `content()` instead of the bytes where given.

    With `compute=False` only what is remembered: None if nothing is.
    """
    status = path.stat()
    key = f"{path.absolute()}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
    book = cache_dir() / "checksums.json"
    known = _noted(book).get(key)
    if isinstance(known, str) or not compute:
        return known if isinstance(known, str) else None
    value = md5(path) if content is None else hashlib.md5(content(), usedforsecurity=False).hexdigest()
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        book.parent.mkdir(parents=True, exist_ok=True)
        with locked(book.with_suffix(".lock")):
            replace(book, json.dumps({**_noted(book), key: value}, indent=0).encode())
    return value


def _noted(book: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(book.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
