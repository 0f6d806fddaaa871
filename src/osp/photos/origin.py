"""Whose journal it is: lines that this user's osp has written are marked with a secret from the user's state folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from osp.files import NO_LINK

_SIZE = 32


def key_file() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("osp")) / "journal-key"


def user_key(make: bool = False) -> bytes | None:
    """The secret; None where there is none, and none can be made."""
    path = key_file()
    with contextlib.suppress(OSError):
        return _read(path)
    if not make:
        return None
    with contextlib.suppress(OSError):  # an unwritable home: journals have no marks then, and undo asks
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent)  # for its owner alone
        try:
            with open(handle, "wb") as file:
                file.write(secrets.token_bytes(_SIZE))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:  # another process was faster
                pass
            except OSError:
                os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        return _read(path)
    return None


def mark(key: bytes, previous: str, line: str) -> str:
    """The mark of a line that follows a line with the mark `previous`: no line can be added, changed or moved."""
    text = f"{previous}\n{line}".encode("ascii", "backslashreplace")
    return hashlib.blake2b(text, key=key, digest_size=16).hexdigest()


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | NO_LINK | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        content = file.read(_SIZE + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    if len(content) != _SIZE:
        raise OSError("damaged")
    return content
