"""Files below a folder, reached without following a link: whatever a stranger left there, nothing outside is touched.

Where the system has handles of folders, each folder on the way is opened from the one above it and refused if it is a
link, and what is done is done in the folder that was opened. Elsewhere each of them is looked at first.

Copies and moves never overwrite a file. After a kill, one of the two names holds the complete file; nothing is deleted
before the same content was read under another name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from osp.errors import short
from osp.files import NO_LINK

_NEEDED = {os.open, os.stat, os.unlink, os.mkdir, os.rmdir, os.link, os.symlink, os.readlink, os.rename}
HANDLES = bool(NO_LINK) and hasattr(os, "O_DIRECTORY") and os.supports_dir_fd >= _NEEDED
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_AT_ONCE = 1 << 20
_BY_HANDLE = os.supports_fd >= {os.chmod, os.utime}


class Outside(Exception):
    """A place that is not below its folder."""


@dataclass(frozen=True)
class Place:
    """A name in a folder that was reached without following a link; the name itself may be a link's."""

    folder: int | None
    """The handle of its folder; None where the system has none."""
    name: str
    """In that folder; the whole path where there is no handle."""
    path: str
    """The whole path, to be shown."""
    there: bool = True
    """Whether its folder exists."""

    def status(self) -> os.stat_result | None:
        """Of the name itself, a link being a link; None where nothing has it."""
        if not self.there:
            return None
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_file(self) -> bool:
        """Whether it is a regular file, and no link to one."""
        status = self.status()
        return status is not None and stat.S_ISREG(status.st_mode)

    def is_link(self) -> bool:
        status = self.status()
        return status is not None and stat.S_ISLNK(status.st_mode)

    def beside(self, name: str) -> Place:
        """Another name in the same folder."""
        path = os.path.join(os.path.dirname(self.path), name)
        return Place(self.folder, path if self.folder is None else name, path, self.there)

    def open(self, follow: bool = False) -> BinaryIO:
        """The regular file of this name, to be read; `follow` takes the one that a link leads to."""
        handle = os.open(self.name, os.O_RDONLY | _FILE | (0 if follow else NO_LINK), dir_fd=self.folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # a pipe, a device
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no file")
        return open(handle, "rb")

    def content(self, follow: bool = False) -> str:
        """The checksum of a file's bytes, as the cache of features has it."""
        digest = hashlib.blake2b(digest_size=16)
        with self.open(follow) as file:
            while piece := file.read(_AT_ONCE):
                digest.update(piece)
        return digest.hexdigest()

    def create(self) -> BinaryIO:
        """A new file of this name, to be written."""
        return open(
            os.open(self.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | _FILE, 0o666, dir_fd=self.folder), "wb"
        )

    def link(self, other: Place) -> None:
        """Give this file another name too, which must be free."""
        os.link(self.name, other.name, src_dir_fd=self.folder, dst_dir_fd=other.folder, follow_symlinks=False)

    def replace(self, other: Place) -> None:
        os.replace(self.name, other.name, src_dir_fd=self.folder, dst_dir_fd=other.folder)

    def symlink(self, to: str) -> None:
        os.symlink(to, self.name, dir_fd=self.folder)

    def readlink(self) -> str:
        return os.readlink(self.name, dir_fd=self.folder)

    def mkdir(self) -> None:
        os.mkdir(self.name, dir_fd=self.folder)

    def rmdir(self) -> None:
        os.rmdir(self.name, dir_fd=self.folder)

    def remove(self) -> None:
        """Take the name away, if it is there; what a link leads to stays."""
        if self.there:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.name, dir_fd=self.folder)

    def entry(self) -> tuple[int, int, str]:
        """The same for the same name of the same folder, however that was reached."""
        status = os.stat(os.path.dirname(self.path)) if self.folder is None else os.fstat(self.folder)
        return status.st_dev, status.st_ino, folded(os.path.basename(self.path))


@contextlib.contextmanager
def reached(root: str | Path, relative: object, make: bool = False) -> Iterator[Place]:
    """The place `relative` below `root`, whose folders are made with `make`; OSError where one of them is a link."""
    *folders, name = parts_of(relative)
    path = os.path.join(root, *folders, name)
    if not HANDLES:
        there = _looked_at(str(root), folders, make)
        yield Place(None, path, path, there)
        return
    handle = _opened(str(root), folders, make)
    try:
        yield Place(handle, name, path, handle is not None)
    finally:
        if handle is not None:
            os.close(handle)


def parts_of(relative: object) -> tuple[str, ...]:
    """The names on the way to a place below a folder; Outside where it is none.

    >>> parts_of("cat/x.jpg")
    ('cat', 'x.jpg')
    """
    text = relative if isinstance(relative, str) else ""
    parts = tuple((text.replace(os.altsep, os.sep) if os.altsep else text).split(os.sep))
    if any(part in ("", ".", "..") for part in parts) or os.path.splitdrive(text)[0] or not can_be_named(text):
        raise Outside(f"the journal names {short(relative)}, which is outside the folder")
    return parts


def can_be_named(path: str) -> bool:
    """Whether the system can have a file of this name at all."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def folded(name: str) -> str:
    """The same for names that some disk takes for one: capitals and small letters, composed and decomposed signs."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _opened(root: str, folders: list[str], make: bool) -> int | None:
    """A handle of the last folder; None where one of them is not there."""
    if make:
        os.makedirs(root, exist_ok=True)
    handle = None
    try:
        handle = os.open(root, _FOLDER)
        for name in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            above, handle = handle, _open_folder(name, handle)
            os.close(above)
    except FileNotFoundError:
        if handle is not None:
            os.close(handle)
        return None
    except OSError:
        if handle is not None:
            os.close(handle)
        raise
    return handle


def _open_folder(name: str, above: int) -> int:
    try:
        return os.open(name, _FOLDER | NO_LINK, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, f"{name} is a link, or no folder") from None
        raise


def _looked_at(root: str, folders: list[str], make: bool) -> bool:
    """Whether these folders are there, one in the other, and no links."""
    if make:
        os.makedirs(root, exist_ok=True)
    path = root
    for name in folders:
        path = os.path.join(path, name)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(status.st_mode) or bool(getattr(status, "st_reparse_tag", 0)):  # a junction is a link too
            raise OSError(errno.ELOOP, f"{name} is a link, or no folder")
    return os.path.isdir(root)


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
    """Where a copy stays until it is complete."""
    name = os.path.basename(target.path)
    while len(os.fsencode(name)) > 200:
        name = name[:-1]
    return target.beside(f".{name}.osp-partial")


def copy(source: Place, target: Place, follow: bool = False) -> tuple[os.stat_result, os.stat_result]:
    """Copy with times; the target appears complete or not at all, and never replaces another file.

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
        _named(partial, target)
    finally:
        partial.remove()
    found = target.status()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "it was taken away as soon as it was there")
    return before, found


def rewrite(target: Place, content: bytes, before: os.stat_result | None) -> None:
    """A file of this content, new or in place of one that is still as it was `before`."""
    partial = partial_of(target)
    partial.remove()
    try:
        with partial.create() as made:
            made.write(content)
            made.flush()
            os.fsync(made.fileno())
            if before is not None and _BY_HANDLE:
                os.chmod(made.fileno(), before.st_mode & 0o777)
        if before is None:
            _named(partial, target)
        elif _changed(before, target.status()):
            raise OSError(errno.EBUSY, "something is still writing it")
        else:
            partial.replace(target)
    finally:
        partial.remove()


def _named(partial: Place, target: Place) -> None:
    """Give a complete file its name, which must be free."""
    try:
        partial.link(target)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links: take the name first, then fill it
        target.create().close()
        partial.replace(target)


def _copy_status(given: BinaryIO, made: BinaryIO) -> None:
    """Permissions, times and, where the system has them, further attributes."""
    status = os.fstat(given.fileno())
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):  # a disk that keeps none
            for name in os.listxattr(given.fileno()):
                os.setxattr(made.fileno(), name, os.getxattr(given.fileno(), name))
    os.chmod(made.fileno(), status.st_mode & 0o777)
    os.utime(made.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
