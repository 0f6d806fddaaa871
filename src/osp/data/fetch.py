"""Fetch a set from its publisher and unpack it: in place only when complete.

What is fetched is checked by its checksum and continued where it broke off. Unpacking follows no link and never leaves
its folder.
"""

from __future__ import annotations

import http.client
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import IO, Any

from osp.data.cache import cache_dir, digest, md5
from osp.data.source import VARIANT, Progress, Remote
from osp.errors import UserError, printable
from osp.files import locked
from osp.version import __version__

CONNECT_SECONDS = 6.0
"""Time until a server must have answered, name lookup included: without a network there is no point in waiting."""
STALL_SECONDS = 30.0
ATTEMPTS = 3
LARGEST_FETCHED = 4 << 30  # bytes of a file that is fetched: half as many again as the largest published one (STL-10)
SLOWEST, WINDOW = 2_000, 60.0
"""Bytes per second over this many seconds, below which a server is given up: it would take weeks."""
LARGEST_UNPACKED = 16 * 2**30  # bytes an archive may unpack to: five times the largest set we know (STL-10)


def download(name: str, remotes: Sequence[Remote], root: Path, progress: Progress | None = None) -> None:
    """Fetch the files of a set that are not there yet into their places below `root`."""
    missing = [remote for remote in remotes if not (root / remote.folder / remote.file).exists()]
    for remote in missing:
        try:
            fetch(remote, root / remote.folder, progress)
        except UserError as error:
            names = " and ".join(other.file for other in missing[missing.index(remote) :])
            gone = "" if root.exists() else ", which is not there"
            raise UserError(
                f"The data set {name!r} is not in {root}{gone}, and fetching it failed: {error} "
                f"To add it by hand, put {names} (from {remote.url.rsplit('/', 1)[0]}/) into {root / remote.folder}, "
                "or name the folder that has it (data_dir, or OSP_DATA)."
            ) from None


def fetch(remote: Remote, folder: Path, progress: Progress | None = None) -> Path:
    """Fetch one file into `folder`. A part left by an earlier attempt is continued; a wrong checksum leaves nothing.

    OSP_MIRROR names another server that has the files under their own names.
    """
    base = os.environ.get("OSP_MIRROR")
    url = f"{base.rstrip('/')}/{remote.file}" if base else remote.url
    target, part = folder / remote.file, folder / f".{remote.file}.part"
    try:
        locks = cache_dir()
        locks.mkdir(parents=True, exist_ok=True)
        with locked(locks / f"fetch-{digest(str(target))}.lock"):
            if target.exists():  # another process fetched it meanwhile
                return target
            continued = part.exists()
            found = _fetch_parts(url, part, progress)
            if found != remote.md5 and continued:  # perhaps the old part was the wrong one
                part.unlink()
                found = _fetch_parts(url, part, progress)
            if found != remote.md5:
                part.unlink()
                raise UserError(f"{url} is not the published file (MD5 {found}, should be {remote.md5}).")
            os.replace(part, target)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.") from None
    return target


def _fetch_parts(url: str, part: Path, progress: Progress | None) -> str:
    """Append to `part` until it is complete, trying again where the connection breaks. Its MD5."""
    reason = ""
    for _ in range(ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": f"osp/{__version__}", **({"Range": f"bytes={have}-"} if have else {})}
        try:
            response = _answer(urllib.request.Request(url, headers=headers))
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing after what we have: it is complete, or not what we think it is
                return md5(part)
            raise UserError(f"{url} answered {error.code} {error.reason}.") from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise UserError(f"{url} cannot be reached ({getattr(error, 'reason', None) or error}).") from None
        with response:
            if response.status != 206:
                have = 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else 0
            part.parent.mkdir(parents=True, exist_ok=True)  # only now: a failed try leaves no trace
            most = min(total or LARGEST_FETCHED, LARGEST_FETCHED)
            if total > LARGEST_FETCHED:
                raise UserError(f"{url} says that it has {total:,} bytes: it is not the published file.")
            with open(part, "ab" if have else "wb") as file:
                began, at_begin = time.monotonic(), have
                try:
                    while block := response.read1(1 << 18):
                        file.write(block)
                        have += len(block)
                        if have > most:
                            part.unlink()
                            raise UserError(f"{url} does not end after {most:,} bytes: it is not the published file.")
                        if (passed := time.monotonic() - began) > WINDOW:
                            if have - at_begin < SLOWEST * passed:
                                raise UserError(
                                    f"{url} sends less than {SLOWEST:,} bytes per second. Start again to continue, or "
                                    "name another server (OSP_MIRROR)."
                                )
                            began, at_begin = time.monotonic(), have
                        if progress:
                            progress(have, max(total, have), f"Fetching {url.rsplit('/', 1)[1]}")
                except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
                    reason = str(error) or type(error).__name__
                    continue
        if have >= total:
            return md5(part)
        reason = f"{have:,} of {total:,} bytes came"
    raise UserError(f"the connection to {url} broke off {ATTEMPTS} times ({reason}); start again to continue.")


def _answer(request: urllib.request.Request) -> Any:
    """Open a connection within a time that covers the name lookup too, which has no time limit of its own."""
    answer: Future[Any] = Future()

    def connect() -> None:
        try:
            answer.set_result(urllib.request.urlopen(request, timeout=STALL_SECONDS))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        return answer.result(CONNECT_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} seconds") from None


def extract(archive: Path, into: Path, folder: str, progress: Progress | None = None, note: str = "") -> Path:
    """Unpack `archive` and move its top folder `folder` into `into`, with a `note` in its VARIANT.txt where it has none
    of its own. A folder already there is left alone."""
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
        if note and not (partial / folder / VARIANT).exists():
            (partial / folder / VARIANT).write_text(note, "utf-8")
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
        inner = PurePosixPath(name.replace("\\", "/"))
        if inner.is_absolute() or ".." in inner.parts or not inner.parts or ":" in inner.parts[0]:
            raise UserError(f"{archive} holds {name!r}, which would land outside the folder. It was not unpacked.")
        path = into / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, open(path, "xb") as out:
            while block := content.read(1 << 20):
                done += len(block)
                if done > LARGEST_UNPACKED:
                    raise UserError(f"{archive} unpacks to more than {LARGEST_UNPACKED >> 30} GB. It was not unpacked.")
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
