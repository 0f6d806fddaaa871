"""Files of ours: written whole or not at all, never through a link, and locked between processes.

A file is written beside its final name under a random name that cannot be there already, flushed to the disk and
renamed; then the folder is flushed too, so that after a power failure either the old or the new file is there. Renaming
replaces a link itself, not what it points to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from osp.errors import UserError

if TYPE_CHECKING:
    import numpy as np

PARTIAL = ".partial"
"""Ending of a file that is being written; what a killed process leaves of it may be deleted."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FULL = (*_NO_ROOM, errno.EFBIG)


def reason(error: OSError) -> str:
    """Why something on the disk failed, in words.

    >>> reason(OSError(errno.ENOSPC, "No space left on device")), reason(OSError(errno.EACCES, "Permission denied"))
    ('the disk is full', 'Permission denied')
    """
    return "the disk is full" if error.errno in _NO_ROOM else error.strerror or str(error)


def check_writable(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that could not be made, before any work: a folder is made in its place's nearest parent and
    taken away again."""
    try:
        parent = next(each for each in [folder.absolute(), *folder.absolute().parents] if each.is_dir())
        os.rmdir(tempfile.mkdtemp(prefix=".osp-", suffix=PARTIAL, dir=parent))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{option} {folder} cannot be written ({reason}). Choose another {option}.") from None


def write_bytes(path: Path, content: bytes, earlier: Path | None = None) -> None:
    """Write a whole file or nothing: an error leaves what was there before, which `earlier` may keep."""
    with _explained(path):
        replace(path, content, earlier)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """The system's errors in writing a file as a sentence."""
    try:
        yield
    except OSError as error:
        kept = f" The earlier {path.name} is untouched." if path.exists() else ""
        advice = " Free some space, then go on with --resume." if error.errno in _FULL else ""
        raise UserError(f"Cannot write {path}: {error.strerror or error}.{kept}{advice}") from error


def replace(path: Path, content: bytes, earlier: Path | None = None) -> None:
    """`write_bytes`, with the system's own errors."""
    with _beside(path, earlier) as partial, open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An npz file, whole or not at all; written piece by piece, as arrays may be as large as memory."""
    import numpy as np

    with _explained(path), _beside(path, None) as partial, open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file as `write_arrays` wrote it; ValueError with the reason where it is none.

    We write members as they are. One that claims to be larger than the file is packed, and could unpack to anything.
    """
    import zipfile
    import zlib

    import numpy as np

    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            with zipfile.ZipFile(file) as members:
                if sum(member.file_size for member in members.infolist()) > size:
                    raise ValueError("its members are packed, or larger than the file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise
    except MemoryError:
        raise ValueError("it asks for more memory than there is") from None
    except (
        *(OSError, EOFError, KeyError, TypeError, AttributeError, SyntaxError, RuntimeError, RecursionError),
        *(OverflowError, NotImplementedError, zipfile.BadZipFile, zlib.error),
    ) as error:
        raise ValueError(str(error)[:200] or type(error).__name__) from None


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


@contextlib.contextmanager
def _beside(path: Path, earlier: Path | None) -> Iterator[str]:
    """A new file in the folder of `path` that takes its place at the end, or is gone if something fails."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    os.close(handle)
    try:
        yield partial
        os.chmod(partial, 0o666 & ~UMASK)
        if earlier is not None and path.exists():
            os.replace(path, earlier)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """See that a rename in this folder outlives a power failure, where the system can do so."""
    with contextlib.suppress(OSError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Of `os.open`: a link is refused with ELOOP, where the system can do so."""


def open_at_end(path: Path, mode: Literal["ab", "a+b"] = "ab") -> BinaryIO:
    """A regular file that is no link, opened to add to it, made where there is none; with the system's own errors."""
    if not NO_LINK and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    kind = os.O_RDWR if "+" in mode else os.O_WRONLY
    try:
        handle = os.open(path, kind | os.O_APPEND | os.O_CREAT | NO_LINK | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        raise OSError(error.errno, "it is a link", str(path)) if error.errno == errno.ELOOP else error from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # a pipe, a device
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return open(handle, mode)


def append_text(path: Path, text: str) -> None:
    """Add text at the end of a file that is no link."""
    try:
        with open_at_end(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}. Go on with --resume.") from error


def open_plain(path: Path) -> BinaryIO:
    """A plain file opened for reading, never through a link and without waiting for a pipe; OSError for all else."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    flags = NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return open(handle, "rb")


def make_folder(path: Path) -> None:
    """Create a folder, and refuse a link in its place."""
    if path.is_symlink():
        raise UserError(f"{path} is a link; files of a run are not written through links.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create the folder {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def owned(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path` alone, or refuse with the sentence `busy`.

    The file stays: whoever deletes a lock that another process waits for lets two hold it.
    """
    from filelock import FileLock, Timeout

    if path.is_symlink():
        raise UserError(f"{path} is a link; delete it.")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(busy) from None
    except NotImplementedError:
        raise UserError(
            f"Cannot lock {path}: its disk has no file locks. Mount it with them (Lustre: -o flock), or use another."
        ) from None
    except OSError as error:
        raise UserError(f"Cannot lock {path}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, waiting for it. Where the file system has none, go on without."""
    from filelock import FileLock

    if path.is_symlink():
        raise UserError(f"{path} is a link; delete it.")
    lock = FileLock(path)
    with contextlib.suppress(OSError, NotImplementedError):  # writes are atomic anyway
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


UMASK = _umask()
