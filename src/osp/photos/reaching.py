"""Files below a folder, reached without following a link: whatever a stranger left there, nothing outside is touched.

Where the system has handles of folders, each folder on the way is opened from the one above it and refused if it is a
link, and what is done is done in the folder that was opened. Elsewhere each of them is looked at first.
"""

from __future__ import annotations

import contextlib
import errno
import os
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
