"""Copy and move files without ever overwriting one; after a kill, one of the two names holds the whole file.

Nothing is deleted before the same content was read under another name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import BinaryIO

from osp.photos.reaching import Place

_AT_ONCE = 1 << 20
_BY_HANDLE = os.supports_fd >= {os.chmod, os.utime}


def move(source: Place, target: Place) -> None:
    """Rename without ever overwriting, to another disk too."""
    before = made = source.status()
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise OSError(errno.EINVAL, "it is a link, which would break when moved")
    try:
        source.link(target)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # another disk, or one without hard links
        before, made = copy(source, target)
    try:
        if not leaves(source, target):
            raise OSError(errno.EIO, "it could not be read back at its new place")
        if made is not before and _changed(before, source.status()):  # of a hard link, both names get what is written
            raise OSError(errno.EBUSY, "something is still writing it")
        os.unlink(source.name, dir_fd=source.folder)
    except OSError:
        there = target.status()
        if made is not None and there is not None and os.path.samestat(made, there) and leaves(target, source, True):
            target.remove()
        raise


def leaves(doomed: Place, kept: Place, changed: bool = False) -> bool:
    """Whether the same content stays under the name `kept` when `doomed` is deleted.

    Both must be regular files, not links, and have the same bytes, or be two names of one file: one name that was
    reached in two ways is no second one. With `changed` other bytes will do.
    """
    one, other = doomed.status(), kept.status()
    if one is None or other is None or not (stat.S_ISREG(one.st_mode) and stat.S_ISREG(other.st_mode)):
        return False
    if os.path.samestat(one, other):
        return one.st_nlink > 1 and doomed.entry() != kept.entry()
    return changed or same_content(doomed, kept)


def same_content(one: Place, other: Place, follow: bool = False) -> bool:
    """Whether two files have the same bytes; `follow` takes the file that a link at the second place leads to."""
    with one.open() as first, other.open(follow) as second:
        if os.fstat(first.fileno()).st_size != os.fstat(second.fileno()).st_size:
            return False
        while piece := first.read(_AT_ONCE):
            if second.read(len(piece)) != piece:
                return False
        return not second.read(1)


def _changed(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    if before is None or now is None or not os.path.samestat(before, now):
        return True
    return (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns)


def partial_of(target: Place) -> Place:
    """Where a copy stays until it is whole."""
    name = os.path.basename(target.path)
    while len(os.fsencode(name)) > 200:
        name = name[:-1]
    return target.beside(f".{name}.osp-partial")


def copy(source: Place, target: Place, follow: bool = False) -> tuple[os.stat_result, os.stat_result]:
    """Copy with times; the target appears whole or not at all, and never replaces another file.

    Gives what the source was when it was opened, and the new file; `follow` copies what a link leads to.
    """
    partial = partial_of(target)
    partial.remove()
    try:
        with source.open(follow) as given, partial.create() as made:
            before = os.fstat(given.fileno())
            shutil.copyfileobj(given, made, _AT_ONCE)
            made.flush()
            os.fsync(made.fileno())
            if _BY_HANDLE:
                _copy_status(given, made)
        if not _BY_HANDLE:
            shutil.copystat(source.path, partial.path)
        try:
            partial.link(target)
        except FileExistsError:
            raise
        except OSError:  # a disk without hard links: take the name first, then fill it
            target.create().close()
            partial.replace(target)
    finally:
        partial.remove()
    found = target.status()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "it was taken away as soon as it was there")
    return before, found


def _copy_status(given: BinaryIO, made: BinaryIO) -> None:
    """Permissions, times and, where the system has them, further attributes."""
    status = os.fstat(given.fileno())
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):  # a disk that keeps none
            for name in os.listxattr(given.fileno()):
                os.setxattr(made.fileno(), name, os.getxattr(given.fileno(), name))
    os.chmod(made.fileno(), status.st_mode & 0o777)
    os.utime(made.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
