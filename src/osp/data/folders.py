"""Folders of image files: which files there are, of which classes, and which of them are copies of one another.

Nothing is decoded here. A linked folder is never followed: inside its own set it would show the same files twice, out
of it it could lead anywhere, back up included. A linked file counts as the file it leads to.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from osp.errors import UserError, first_few, printable

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
"""Files that are plainly no images: passed over without a word."""

HEAD = 4096  # bytes that tell most files of one size apart; those that agree in them are read whole

T = TypeVar("T")


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
    size: int  # -1 where there is no such file, or a link leads nowhere
    modified: int
    changed: int  # on Unix this also tells that a file has become readable
    identity: tuple[int | str, ...] = ()  # the same for two names of one file, such as links

    @classmethod
    def at(cls, path: str) -> File:
        """The file of this path, as it is now."""
        try:
            status = os.stat(path)
        except OSError:  # a link to nowhere: listed among the unreadable
            return cls(path, -1, 0, 0)
        identity = (status.st_dev, status.st_ino) if status.st_ino else (os.path.realpath(path),)
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, identity)


@dataclass
class Found:
    """What lies in a folder."""

    files: list[File] = field(default_factory=list)  # the visible files with an image's extension, sorted by path
    passed_over: Counter[str] = field(default_factory=Counter)  # how many visible files of which other extensions
    links: list[str] = field(default_factory=list)  # linked folders that lead out of this one

    def add(self, other: Found) -> None:
        """What lies in another folder, too."""
        self.files += other.files
        self.passed_over.update(other.passed_over)
        self.links += other.links

    def notes(self, root: Path | str) -> list[str]:
        """Sentences on what was passed over in a folder."""
        notes = []
        if passed := self.passed_over:
            kinds = ", ".join(f"{count} {kind}" for kind, count in passed.most_common())
            notes.append(
                f"Files of other kinds in {root} were passed over: {sum(passed.values())} ({kinds}). "
                f"Images are {kinds_in_words()}."
            )
        if self.links:
            some = first_few([os.path.relpath(link, root) for link in self.links])
            notes.append(
                f"Linked folders in {root} that lead out of their class or pile, or back into the set, were not "
                f"followed: {len(self.links)} ({some}). Put the images themselves there, or name their folder."
            )
        return notes


def list_images(folder: Path | str, deep: bool = False) -> list[File]:
    """The visible files with an image's extension, sorted by path; with `deep`, those in folders below too."""
    return walk(folder, deep).files


def walk(folder: Path | str, deep: bool = True) -> Found:
    """List a folder and, with `deep`, all folders below it."""
    found = Found()
    root = os.path.realpath(folder)
    waiting, seen = [str(folder)], {File.at(str(folder)).identity}
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
                    elif (
                        identity := File.at(entry.path).identity or (entry.path,)
                    ) not in seen:  # a mounted folder can go round, too
                        seen.add(identity)
                        waiting.append(entry.path)
                elif name.lower().endswith(_IMAGES):
                    found.files.append(File.at(entry.path))
                elif (kind := os.path.splitext(name)[1].lower()) not in _NOTES:
                    found.passed_over[kind or "without an extension"] += 1
    found.files.sort()
    found.links.sort()
    return found


def subfolders(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the visible folders in a folder, sorted; and links among them that lead back into it or above it.

    A link to anywhere else is a folder like any other: one may well put a set together out of links. Names are refused
    that are not UTF-8.
    """
    root = os.path.realpath(folder)
    names, links = [], []
    with _scan(str(folder)) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _NOT_CLASSES or not _is_folder(entry):
                continue
            if not _is_text(entry.name):
                raise UserError(
                    f"The name of the folder {printable(entry.path)} is not UTF-8: no table or page could name such a "
                    "class. Rename the folder."
                )
            target = os.path.realpath(entry.path)
            if entry.is_symlink() and (_within(target, root) or _within(root, target)):
                links.append(entry.path)
            else:
                names.append(entry.name)
    return sorted(names), sorted(links)


def list_classes(root: Path) -> tuple[dict[str, Found], list[str]]:
    """What lies in each of the `subfolders`, at any depth: a class each; and the links that `subfolders` gives."""
    names, links = subfolders(root)
    return {name: walk(root / name) for name in names}, links


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python has bytes that are not UTF-8 as lone surrogates
        return False
    return True


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


def check_root(root: Path, must_exist: bool = False) -> None:
    """Refuse a data folder that is a file, cannot be read, or (where it must hold files already) is missing."""
    try:
        with os.scandir(root):
            return
    except NotADirectoryError:
        raise UserError(f"The data folder {root} is a file. Name the folder that holds the data.") from None
    except PermissionError:
        raise UserError(f"The data folder {root} cannot be read: permission denied.") from None
    except FileNotFoundError:
        if must_exist:
            raise UserError(f"The data folder {root} does not exist.") from None
    except OSError as error:
        raise UserError(f"The data folder {root} cannot be read: {error.strerror or error}.") from None


def same_content(files: Sequence[File]) -> list[list[int]]:
    """Positions of files with the same bytes, a list per content that occurs more than once, in order.

    Empty files and files that cannot be read are copies of nothing.
    """
    groups = []
    for members in _by(range(len(files)), lambda i: files[i].size if files[i].size > 0 else None):
        path_of = {files[i].identity: files[i].path for i in members}  # names of one file are read once
        key_of: dict[Hashable, Hashable] = {identity: identity for identity in path_of}
        if len(path_of) > 1:
            heads = {identity: _digest(path, HEAD) for identity, path in path_of.items()}
            for alike in _by(list(path_of), heads.__getitem__):
                for identity in alike:
                    key_of[identity] = _digest(path_of[identity]) or identity
        groups += _by(members, lambda i, key_of=key_of: key_of[files[i].identity])  # type: ignore[misc]
    return sorted(groups)


def _by(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items with the same key, where there are two or more; None is no key."""
    found: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return [members for value, members in found.items() if value is not None and len(members) > 1]


def _digest(path: str, length: int | None = None) -> bytes | None:
    try:
        with open(path, "rb") as file:
            if length is not None:
                return hashlib.blake2b(file.read(length), digest_size=16).digest()
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError:
        return None


def seen_in(files: Sequence[str], others: Sequence[str]) -> list[int]:
    """Positions of those files that have the same bytes as one of the others."""
    count = len(files)
    groups = same_content([File.at(path) for path in (*files, *others)]) if count and len(others) else []
    return sorted(i for group in groups if group[-1] >= count for i in group if i < count)


@dataclass
class LabeledFiles:
    """Files with their classes: three lists side by side."""

    root: Path
    classes: tuple[str, ...]
    files: list[File] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # -1 where the class is unknown
    is_test: list[bool] = field(default_factory=list)
    found: Found = field(default_factory=Found)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # copies, each with the reason
    notes: list[str] = field(default_factory=list)  # sentences on what was left out

    def add(self, found: Found, label: int = -1, test: bool = False) -> None:
        """The files of one folder."""
        self.found.add(found)
        self.files += found.files
        self.labels += [label] * len(found.files)
        self.is_test += [test] * len(found.files)

    def leave_out_copies(self) -> None:
        """Keep each image once, and say what was left out or passed over.

        Of several copies a test image is kept before a training image (else the test would be of images learned), one
        with a class before one without, then the first. Where copies lie in different classes it is unknown which is
        right: none is kept.
        """
        copies: dict[int, int] = {}
        unclear: list[int] = []
        for group in same_content(self.files):
            if len({self.labels[i] for i in group} - {-1}) > 1:
                unclear += group
            else:
                best = min(group, key=lambda i: (not self.is_test[i], self.labels[i] < 0, i))
                copies |= {i: best for i in group if i != best}
        unclear.sort()
        near = [os.path.relpath(file.path, self.root) for file in self.files]
        if copies:
            what = "1 file is a copy and was" if len(copies) == 1 else f"{len(copies)} files are copies and were"
            pairs = [f"{near[copy]} = {near[kept]}" for copy, kept in sorted(copies.items())]
            self.notes.append(f"In {self.root} {what} left out ({first_few(pairs)}).")
        if unclear:
            self.notes.append(
                f"In {self.root} {len(unclear)} files show images that lie in the folders of several classes; "
                f"they were left out, since the right class is unknown ({first_few([near[i] for i in unclear])})."
            )
        self.notes += self.found.notes(self.root)
        reasons = {copy: f"the same image as {near[kept]}" for copy, kept in copies.items()}
        reasons |= dict.fromkeys(unclear, "the same image lies in the folder of another class, too")
        self.left_out = [(self.files[i].path, reasons[i]) for i in sorted(reasons)]
        keep = [i for i in range(len(self.files)) if i not in reasons]
        self.files = [self.files[i] for i in keep]
        self.labels = [self.labels[i] for i in keep]
        self.is_test = [self.is_test[i] for i in keep]


def check_folder(root: Path, what: str) -> None:
    """Refuse what is no folder; `what` says what it was given as."""
    if not root.is_dir():
        raise UserError(f"{root} ({what}) is {'a file, not a folder' if root.exists() else 'not there'}.")
