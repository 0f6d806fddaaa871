"""Unpack an archive without following links or leaving the folder; the result appears whole or not at all."""

from __future__ import annotations

import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from osp.data.source import Progress
from osp.errors import UserError, printable

LARGEST = 16 * 2**30
"""Bytes an archive may unpack to: five times the largest set we know (STL-10)."""


def extract(archive: Path, into: Path, folder: str, *, progress: Progress | None = None) -> Path:
    """Unpack `archive` and move its top folder `folder` into `into`. A folder already there is left alone."""
    target = into / folder
    if target.exists():
        return target
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{folder}.", suffix=".partial", dir=into))
    except OSError as error:
        raise UserError(f"{archive} cannot be unpacked into {into}: {error.strerror}.") from None
    try:
        _unpack(archive, partial, progress)
        if not (partial / folder).is_dir():
            raise UserError(f"{archive} holds no folder {folder!r}: it is not the published archive. Fetch it again.")
        try:
            os.rename(partial / folder, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, with the same files
                raise
        return target
    except UserError:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error) as error:
        size = archive.stat().st_size
        raise UserError(f"{archive} ({size:,} bytes) is damaged or cut short: {error}. Fetch it again.") from None
    except (ValueError, RuntimeError) as error:  # names that are none; encrypted or packed in a way unknown here
        raise UserError(f"{archive} cannot be unpacked: {printable(error)}. Fetch the published archive.") from None
    except OSError as error:
        raise UserError(f"{archive} cannot be unpacked into {into}: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(archive: Path, into: Path, progress: Progress | None) -> None:
    text, total, done = f"Unpacking {archive.name}", archive.stat().st_size, 0
    opened = _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
    for count, (name, position, content) in enumerate(opened):
        path = into / _inside(archive, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, open(path, "xb") as out:
            while block := content.read(1 << 20):
                done += len(block)
                if done > LARGEST:
                    raise UserError(f"{archive} unpacks to more than {LARGEST >> 30} GB. It was not unpacked.")
                out.write(block)
        if progress and count % 200 == 0:
            progress(min(position, total), total, text)
    if progress:
        progress(total, total, text)


def _tar_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with open(archive, "rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise UserError(f"{archive} holds {member.name!r}, a link or device. It was not unpacked.")
            yield member.name, raw.tell(), content


def _zip_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = member.external_attr >> 28  # the file type, where the archive was made on Unix
            if kind not in (0, 0o4, 0o10):
                raise UserError(f"{archive} holds {member.filename!r}, a link or device. It was not unpacked.")
            if not member.is_dir():
                yield member.filename, member.header_offset, opened.open(member)


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]) or not path.parts:
        raise UserError(f"{archive} holds {name!r}, which would land outside the folder. It was not unpacked.")
    return path
