"""Listing folders of image files: which files there are, without opening any of them.

A linked folder is never followed: inside its own set it would show the same files twice, out of it it could lead
anywhere, back up included. A linked file counts as the file it leads to.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from osp.errors import UserError

HEIF_EXTENSIONS = (".heic", ".heif")
EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif")
KINDS = ("JPEG", "PNG", "WebP", "BMP", "TIFF", "GIF")
_IMAGES = EXTENSIONS + HEIF_EXTENSIONS
_NOT_CLASSES = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "__pycache__")
# fmt: off
_NOTES = {
    ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".log",
    ".html", ".htm", ".css", ".js", ".py", ".ipynb", ".sh", ".bat", ".url", ".lnk", ".db", ".xmp", ".aae", ".thm",
    ".md5", ".sha1", ".sha256", ".npy", ".npz", ".mat", ".pkl", ".pt", ".h5",
}
# fmt: on
"""Files that nobody takes for images: passed over without a word."""


def has_heif() -> bool:
    """Whether HEIC can be read here (extra `heif`)."""
    return find_spec("pillow_heif") is not None


def kinds() -> tuple[str, ...]:
    """The kinds of image that can be read here, as people call them."""
    return (*KINDS, "HEIC") if has_heif() else KINDS


def kinds_in_words() -> str:
    """`JPEG, PNG or GIF`."""
    *most, last = kinds()
    return f"{', '.join(most)} or {last}"


class File(NamedTuple):
    """A file, and what shows that it was changed."""

    path: str
    size: int
    """-1 for a link that leads nowhere."""
    modified: int
    changed: int
    """On Unix this also tells that a file has become readable."""
    identity: tuple[int | str, ...] = ()
    """The same for two names of one file, such as links."""


@dataclass
class Found:
    """What lies in a folder."""

    files: list[File] = field(default_factory=list)
    """The visible files with an image's extension, sorted by path."""
    passed_over: Counter[str] = field(default_factory=Counter)
    """How many visible files of which other extensions."""
    links: list[str] = field(default_factory=list)
    """Linked folders that lead out of this one."""

    def add(self, other: Found) -> None:
        """What lies in another folder, too."""
        self.files += other.files
        self.passed_over.update(other.passed_over)
        self.links += other.links


def list_images(folder: Path | str, deep: bool = False) -> list[File]:
    """The visible files with an image's extension, sorted by path; with `deep`, those in folders below too."""
    return walk(folder, deep).files


def walk(folder: Path | str, deep: bool = True) -> Found:
    """List a folder and, with `deep`, all folders below it."""
    found = Found()
    root = os.path.realpath(folder)
    waiting, seen = [str(folder)], {_identity_of(str(folder))}
    while waiting:
        with _scan(waiting.pop()) as entries:
            for entry in entries:
                name: str = entry.name
                if name[0] == ".":
                    continue
                if _is_folder(entry):
                    if not deep or name in _NOT_CLASSES:
                        continue
                    if entry.is_symlink():
                        if not _within(os.path.realpath(entry.path), root):
                            found.links.append(entry.path)
                    elif (identity := _identity_of(entry.path)) not in seen:  # a mounted folder can go round, too
                        seen.add(identity)
                        waiting.append(entry.path)
                elif name.lower().endswith(_IMAGES):
                    found.files.append(_file(entry))
                elif (kind := os.path.splitext(name)[1].lower()) not in _NOTES:
                    found.passed_over[kind or "without an extension"] += 1
    found.files.sort()
    found.links.sort()
    return found


def subfolders(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the visible folders in a folder, sorted; and links among them that lead back into it or above it.

    A link to anywhere else is a folder like any other: one may well put a set together out of links.
    """
    root = os.path.realpath(folder)
    names, links = [], []
    with _scan(str(folder)) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _NOT_CLASSES or not _is_folder(entry):
                continue
            target = os.path.realpath(entry.path)
            if entry.is_symlink() and (_within(target, root) or _within(root, target)):
                links.append(entry.path)
            else:
                names.append(entry.name)
    return sorted(names), sorted(links)


def stat_files(paths: Sequence[str]) -> list[File]:
    """Files by their paths, as they are now; size -1 where there is none any more."""
    files = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            files.append(File(path, -1, 0, 0))
            continue
        files.append(_with_status(path, status))
    return files


def _file(entry: os.DirEntry[str]) -> File:
    try:
        return _with_status(entry.path, entry.stat())
    except OSError:  # a link to nowhere: listed among the unreadable
        return File(entry.path, -1, 0, 0)


def _with_status(path: str, status: os.stat_result) -> File:
    return File(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, _identity(path, status))


def _identity_of(path: str) -> tuple[int | str, ...]:
    try:
        return _identity(path, os.stat(path))
    except OSError:
        return (path,)


def _identity(path: str, status: os.stat_result) -> tuple[int | str, ...]:
    """Windows gives no number of a file while it lists a folder."""
    return (status.st_dev, status.st_ino) if status.st_ino else (os.path.realpath(path),)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _within(path: str, folder: str) -> bool:
    try:
        return os.path.commonpath([path, folder]) == folder
    except ValueError:  # on another drive
        return False


def _scan(folder: str) -> Any:
    try:
        return os.scandir(folder)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read: {error.strerror or error}.") from None
