"""Files of ours: written whole or not at all, never through a link, and locked between processes.

A file is written beside its final name under a random name that cannot be there already, flushed to the disk and
renamed; then the folder is flushed too, so that after a power failure either the old or the new file is there. Renaming
replaces a link itself, not what it points to.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from osp.errors import UserError

if TYPE_CHECKING:
    import numpy as np

PARTIAL = ".partial"
"""Ending of a file that is being written; what a killed process leaves of it may be deleted."""

LARGEST_SMALL = 64 << 20
"""Bytes of a JSON file or the like that is read; ours have a few thousand, a result of 1,000 classes 8 million."""
LONGEST_LINE = 1 << 20

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FULL = (*_NO_ROOM, errno.EFBIG)


def reason(error: OSError) -> str:
    """Why something on the disk failed, in words.

    >>> reason(OSError(errno.ENOSPC, "No space left on device")), reason(OSError(errno.EACCES, "Permission denied"))
    ('the disk is full', 'Permission denied')
    """
    return "the disk is full" if error.errno in _NO_ROOM else error.strerror or str(error)


def check_writable(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that could not be made or looked at, before any work: a folder is made in its place's nearest
    parent and taken away again."""
    try:
        parent = next(each for each in [folder, *folder.absolute().parents] if each.exists())
        if not parent.is_dir():
            raise UserError(f"{option} {parent} is a file; name a folder.")
        with os.scandir(parent):
            os.rmdir(tempfile.mkdtemp(prefix=".osp-", suffix=PARTIAL, dir=parent))
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{option} {folder} cannot be written ({why}). Choose another {option}.") from None


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
        again = " Free some space and run it again; a training goes on with --resume."
        advice = again if error.errno in _FULL else ""
        raise UserError(f"Cannot write {path}: {error.strerror or error}.{kept}{advice}") from error


def replace(path: Path, content: bytes, earlier: Path | None = None) -> None:
    """`write_bytes`, with the system's own errors."""
    with _beside(path, earlier) as file:
        file.write(content)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An npz file, whole or not at all; written piece by piece, as arrays may be as large as memory."""
    import numpy as np

    if objects := [name for name, values in arrays.items() if np.asarray(values).dtype.hasobject]:
        raise TypeError(f"{objects[0]} holds Python objects: they would be pickled")
    with _explained(path), _beside(path) as file:
        np.savez(file, **dict(arrays))  # type: ignore[arg-type]  # by name; numpy before 2.2 has no allow_pickle here


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file as `write_arrays` wrote it; ValueError with the reason where it is none.

    We write members as they are. One that claims to be larger than the file is packed, and could unpack to anything.
    """
    import tokenize
    import zipfile
    import zlib

    import numpy as np

    try:
        with open_plain(path, links=True) as file:
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
        *(OverflowError, NotImplementedError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
    ) as error:
        raise ValueError(str(error)[:200] or type(error).__name__) from None


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


@contextlib.contextmanager
def _beside(path: Path, earlier: Path | None = None) -> Iterator[BinaryIO]:
    """A new file in the folder of `path` that takes its place at the end, or is gone if something fails."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
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


def open_plain(path: Path, most: int | None = None, links: bool = False) -> io.BufferedReader:
    """A file opened for reading; OSError for pipes, devices, what is longer than `most` bytes and, unless `links` are
    followed, for links. Nothing is opened that has an effect, or could make us wait."""
    if not links and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    flags = (0 if links else NO_LINK) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, os.O_RDONLY | flags)
    status = os.fstat(handle)  # it may be another one by now
    if not stat.S_ISREG(status.st_mode) or (most is not None and status.st_size > most):
        os.close(handle)
        what = "it is no file" if most is None else f"it is longer than {most >> 20:,} MB"
        raise OSError(errno.EFBIG, what, str(path))
    return open(handle, "rb")


def read_plain(path: Path, most: int = LARGEST_SMALL, links: bool = False) -> bytes:
    """The content of a small file, opened by `open_plain`."""
    with open_plain(path, most, links) as file:
        return file.read(most)


def read_json(path: Path, links: bool = False) -> Any:
    """The value of a small JSON file, opened by `open_plain`; ValueError with the reason where it holds none."""
    try:
        return json.loads(read_plain(path, links=links))
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, opened by `open_plain`; ValueError for one that no table or log of ours has."""
    with open_plain(path) as file:
        for line in iter(lambda: file.readline(LONGEST_LINE + 1), b""):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"a line of more than {LONGEST_LINE:,} bytes")
            yield line


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
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    if path.is_symlink():
        raise UserError(f"{path} is a link; delete it.")
    lock: BaseFileLock = FileLock(path)
    no_locks = UserError(
        f"Cannot lock {path}: its disk has no file locks. Mount it with them (Lustre: -o flock), or use another."
    )
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise (no_locks if isinstance(lock, SoftFileLock) else UserError(busy)) from None
    except NotImplementedError:
        raise no_locks from None
    except OSError as error:
        raise UserError(f"Cannot lock {path}: {error.strerror or error}.") from error
    if isinstance(lock, SoftFileLock):  # it becomes one there: a file that a killed process leaves would lock forever
        lock.release()
        raise no_locks
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, waiting for it. Where the system or the file system has none, go on without.

    There filelock takes a file for a lock as long as it exists. One left behind, by a crash or by a process that could
    lock it, would be waited for forever.
    """
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    if path.is_symlink():
        raise UserError(f"{path} is a link; delete it.")
    lock: BaseFileLock = FileLock(path)
    # Without it every file is still written whole; two that add to one may do it twice, or the last one wins.
    with contextlib.suppress(OSError, NotImplementedError):
        while not (lock.is_locked or isinstance(lock, SoftFileLock)):  # it becomes one on a disk without locks
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=1)
    try:
        yield
    finally:
        lock.release()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


UMASK = _umask()
