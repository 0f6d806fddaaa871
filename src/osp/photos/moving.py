"""Copy and move files without ever overwriting one; after a kill, one of the two names holds the whole file."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def move(source: str | Path, target: str | Path) -> None:
    """Rename without ever overwriting, to another disk too."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # another disk, or one without hard links
        copy(source, target)
    os.unlink(source)


def partial_name(target: str | Path) -> str:
    """Where a copy stays until it is whole."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name[:200]}.osp-partial")


def copy(source: str | Path, target: str | Path) -> None:
    """Copy with times; the target appears whole or not at all, and never replaces another file."""
    partial = partial_name(target)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    try:
        with open(source, "rb") as given, open(partial, "xb") as made:
            shutil.copyfileobj(given, made, 1 << 20)
            made.flush()
            os.fsync(made.fileno())
        shutil.copystat(source, partial)
        try:
            os.link(partial, target)
        except FileExistsError:
            raise
        except OSError:  # a disk without hard links: take the name first, then fill it
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.replace(partial, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
