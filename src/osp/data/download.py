"""Fetch a set from its publisher: checked by checksum, resumed where it broke off, in place only when whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osp.data.cache import cache_dir, digest
from osp.data.source import Progress, Remote
from osp.errors import UserError
from osp.files import locked
from osp.version import __version__

CONNECT_SECONDS = 6.0
"""Time until a server must have answered, name lookup included: without a network nobody should wait."""
STALL_SECONDS = 30.0
ATTEMPTS = 3
LARGEST = 4 << 30
"""Bytes of a file that is fetched: half as many again as the largest published one (STL-10)."""
SLOWEST, WINDOW = 2_000, 60.0
"""Bytes per second over this many seconds, below which a server is given up: it would take weeks."""


def how_to_get(remotes: Sequence[Remote], root: Path) -> str:
    """Which file to put where, for those who fetch by hand."""
    place = root / remotes[0].folder
    files = ", ".join(remote.url for remote in remotes)
    return f"fetched by itself where there is a network; otherwise put {files} into {place}"


def download(
    name: str, remotes: Sequence[Remote], root: Path, *, base_url: str | None = None, progress: Progress | None = None
) -> None:
    """Fetch the files of a set that are not there yet into their places below `root`.

    `base_url` (or OSP_MIRROR) names another server that has the files under their own names.
    """
    missing = [remote for remote in remotes if not (root / remote.folder / remote.file).exists()]
    for remote in missing:
        try:
            fetch(remote, root / remote.folder, base_url=base_url, progress=progress)
        except UserError as error:
            names = " and ".join(other.file for other in missing[missing.index(remote) :])
            raise UserError(
                f"The data set {name!r} is not in {root}, and fetching it failed: {error} "
                f"To add it by hand, put {names} (from {remote.url.rsplit('/', 1)[0]}/) into {root / remote.folder}, "
                "or name the folder that has it (data_dir, or OSP_DATA)."
            ) from None


def fetch(
    remote: Remote,
    folder: Path,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
    connect_seconds: float = CONNECT_SECONDS,
) -> Path:
    """Fetch one file into `folder`. A part left by an earlier attempt is continued; a wrong checksum leaves nothing."""
    base = base_url or os.environ.get("OSP_MIRROR")
    url = f"{base.rstrip('/')}/{remote.file}" if base else remote.url
    target, part = folder / remote.file, folder / f".{remote.file}.part"
    try:
        locks = cache_dir()
        locks.mkdir(parents=True, exist_ok=True)
        with locked(locks / f"fetch-{digest(str(target))}.lock"):
            if target.exists():  # another process fetched it meanwhile
                return target
            continued = part.exists()
            md5 = _fetch_parts(url, part, progress, connect_seconds)
            if md5 != remote.md5 and continued:  # perhaps the old part was the wrong one
                part.unlink()
                md5 = _fetch_parts(url, part, progress, connect_seconds)
            if md5 != remote.md5:
                part.unlink()
                raise UserError(f"{url} is not the published file (MD5 {md5}, should be {remote.md5}).")
            os.replace(part, target)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.") from None
    return target


def _fetch_parts(url: str, part: Path, progress: Progress | None, connect_seconds: float) -> str:
    """Append to `part` until it is whole, trying again where the connection breaks. Its MD5."""
    reason = ""
    for _ in range(ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": f"osp/{__version__}", **({"Range": f"bytes={have}-"} if have else {})}
        try:
            response = _answer(urllib.request.Request(url, headers=headers), connect_seconds)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing after what we have: it is whole, or not what we think it is
                return _md5(part)
            raise UserError(f"{url} answered {error.code} {error.reason}.") from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise UserError(f"{url} cannot be reached ({getattr(error, 'reason', None) or error}).") from None
        with response:
            if response.status != 206:
                have = 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length and length.isdigit() else 0
            part.parent.mkdir(parents=True, exist_ok=True)  # only now: a failed try leaves no trace
            most = min(total or LARGEST, LARGEST)
            if total > LARGEST:
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
            return _md5(part)
        reason = f"{have:,} of {total:,} bytes came"
    raise UserError(f"the connection to {url} broke off {ATTEMPTS} times ({reason}); start again to continue.")


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _answer(request: urllib.request.Request, seconds: float) -> Any:
    """Open a connection within a time that covers the name lookup too, which has no time limit of its own."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def connect() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=STALL_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
