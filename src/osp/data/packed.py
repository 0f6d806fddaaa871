"""Sets that come as one archive: unpack it beside itself, and remember if it was not the published one."""

from __future__ import annotations

import os
from pathlib import Path

from osp.data import cache
from osp.data.archives import extract
from osp.data.source import Progress, Remote, Request


def unpack_or_fetch(request: Request, remote: Remote, folder: str) -> Path:
    """The unpacked folder of a set whose archive lies in the data folder, or is fetched into it first."""
    archive = request.root / remote.file
    if not archive.is_file():
        from osp.data.download import download

        download(request.name, [remote], request.root, progress=request.progress)
    return unpack(archive, folder, remote.md5, request.progress)


def unpack(archive: Path, folder: str, md5: str, progress: Progress | None) -> Path:
    """Unpack `folder` out of `archive`, beside it or, where that is read-only, in the cache.

    An archive with a wrong checksum is used all the same, and its folder says so.
    """
    into = archive.parent
    if not os.access(into, os.W_OK):
        status = archive.stat()
        into = cache.cache_dir() / "unpacked" / cache.digest(str(archive), status.st_size, status.st_mtime_ns)
        into.mkdir(parents=True, exist_ok=True)
    new = not (into / folder).exists()
    target = extract(archive, into, folder, progress=progress)
    note = target / "VARIANT.txt"
    if new and cache.md5_of(archive) != md5 and not note.exists():
        note.write_text(f"not as published (checksum): {archive.name}\n", "utf-8")
    return target
