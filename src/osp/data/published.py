"""Published sets: found in the data folder, else unpacked or fetched, and compared with what was published.

A set declares its files and says how they are read; what `load`, `describe` and `osp datasets` need comes from that.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.folders import check_root
from osp.data.images import ImageSet
from osp.data.source import VARIANT, Description, Progress, Remote, Request, Source, SourceInfo
from osp.errors import UserError
from osp.machine import in_gigabytes, memory


@dataclass(kw_only=True)
class Published(ABC):
    """A published set: `has`, `description` and `read` say what its files look like."""

    remotes: tuple[Remote, ...] = ()
    """The published files. The first of several archives is fetched; of files that are no archives, all are."""
    folders: tuple[str, ...]  # where the files usually lie below the data folder, which is looked into last
    counts: tuple[int, int, int] = (0, 0, 0)  # as published: training images with a class and without one, test images
    shape: tuple[int, int, int] = (3, 32, 32)  # of images where no size is asked for
    md5: Mapping[str, str] = field(default_factory=dict)  # of the unpacked files
    large: bool = False  # gigabytes, whose checksums `look` tells only where they are known

    @abstractmethod
    def has(self, folder: Path) -> bool:
        """Whether this folder holds the set's files, or some of them."""

    @abstractmethod
    def description(self, folder: Path, request: Request) -> Description:
        """Classes and counts from listings, headers and labels."""

    def glance(self, folder: Path, request: Request) -> Description:
        """The same in a moment, for `osp datasets`: counts may be the published ones where reading would take long."""
        return self.description(folder, request)

    @abstractmethod
    def read(self, folder: Path, request: Request) -> tuple[ImageSet, ImageSet | None]:
        """The training and the test set; `load` adds the variant."""

    def unlike(self, found: tuple[int, ...]) -> str | None:
        """How these counts differ from `counts`, in words; None where they do not, or none were published."""
        if found == self.counts or not any(self.counts):
            return None
        train, test, published = sum(found[:2]), found[2], sum(self.counts[:2])
        if not self.counts[2]:
            return f"{train:,} images instead of {published:,}"
        return f"{train:,} training and {test:,} test images instead of {published:,} and {self.counts[2]:,}"

    def source(self, **facts: Any) -> Source:
        """What the set's file declares, with what else `Source` has room for."""
        return Source(
            load=self.load,
            describe=lambda request: self.description(self.open(request), request),
            look=self.look,
            remotes=self.fetched,
            **facts,
        )

    def load(self, request: Request) -> tuple[ImageSet, ImageSet | None]:
        """The sets as they are read, with how they differ from the published ones."""
        folder = self.open(request)
        train, test = self.read(folder, request)
        known = int((train.classes >= 0).sum())
        variant = self.variant(folder, (known, len(train) - known, 0 if test is None else len(test)))
        return replace(train, variant=variant), None if test is None else replace(test, variant=variant)

    @property
    def fetched(self) -> tuple[Remote, ...]:
        """What is fetched where nothing is there."""
        return self.remotes[:1] if any(remote.unpacks for remote in self.remotes) else self.remotes

    def find(self, root: Path) -> Path | None:
        """The folder of the set, where there is one."""
        check_root(root)
        return next((folder for folder in (*(root / name for name in self.folders), root) if self.has(folder)), None)

    def open(self, request: Request) -> Path:
        """The folder of the set, unpacked or fetched first where there is none."""
        if found := self.find(request.root):
            return found
        archive = self._archive(request.root)
        if archive is None and not request.fetch:
            raise UserError(f"{request.name} is not in {request.root}.")
        if archive is None:
            from osp.data.fetch import download

            download(request.name, self.fetched, request.root, request.progress)
            archive = self._archive(request.root)
        if archive is not None:
            return unpack(request.root / archive.file, archive, request.progress)
        found = self.find(request.root)
        assert found is not None, "download() put all files in place"
        return found

    def _archive(self, root: Path) -> Remote | None:
        return next((remote for remote in self.remotes if remote.unpacks and (root / remote.file).is_file()), None)

    def how(self, root: Path) -> str:
        """How to get the set: which file to put where, for those who fetch by hand."""
        files = ", ".join(remote.url for remote in self.fetched)
        place = root / self.fetched[0].folder
        return f"fetched by itself where there is a network; otherwise put {files} into {place}"

    def look(self, request: Request) -> SourceInfo:
        """What is there, in a moment."""
        name, root = request.name, request.root
        folder, archive = self.find(root), self._archive(root)
        if folder is None and archive is not None:
            train, test = sum(self.counts[:2]), self.counts[2]
            how = "unpacked at the first use"
            return SourceInfo(name, True, str(root / archive.file), train, test, self.shape, how=how)
        if folder is None:
            return SourceInfo(name, False, str(root), how=self.how(root))
        try:
            found = self.glance(folder, request)
            train, unknown, test = sum(found.train), found.train_unknown, sum(found.test or ()) + found.test_unknown
            variant = self.variant(folder, (train, unknown, test), compute=not self.large)
        except UserError as error:
            return SourceInfo(name, False, str(folder), how=self.how(root), problem=str(error))
        tested = None if found.test is None else test
        return SourceInfo(name, True, str(folder), train + unknown, tested, found.shape, variant)

    def variant(self, folder: Path, found: tuple[int, ...] = (), compute: bool = True) -> str | None:
        """How a folder differs from the published one: its VARIANT.txt, else the counts, else files of another MD5.

        With `compute=False` checksums count only where they are remembered.
        """
        with contextlib.suppress(OSError):
            if stated := " ".join((folder / VARIANT).read_text("utf-8", errors="replace").split()):
                return stated
        if found and (different := self.unlike(found)):
            return different
        known = {name: md5 for name, md5 in self.md5_in(folder).items() if (folder / name).is_file()}
        wrong = [name for name, md5 in known.items() if self.md5_of(folder / name, compute) not in (md5, None)]
        return f"not as published (checksum): {', '.join(wrong)}" if wrong else None

    def md5_in(self, folder: Path) -> Mapping[str, str]:
        """The published checksums of the files in this folder."""
        return self.md5

    def md5_of(self, path: Path, compute: bool) -> str | None:
        """The checksum of one file."""
        return cache.md5_of(path, compute=compute)

    def sized(self, request: Request) -> tuple[int, int, int]:
        """The shape of the images at the size asked for."""
        return (self.shape[0], request.size, request.size) if request.size else self.shape


def unpack(archive: Path, remote: Remote, progress: Progress | None) -> Path:
    """Unpack an archive's folder beside it or, where that is read-only, in the cache.

    An archive with another checksum is used all the same, and its folder says so.
    """
    from osp.data.fetch import extract

    into = archive.parent
    if not os.access(into, os.W_OK):
        status = archive.stat()
        into = cache.cache_dir() / "unpacked" / cache.digest(str(archive), status.st_size, status.st_mtime_ns)
        into.mkdir(parents=True, exist_ok=True)
    wrong = not (into / remote.unpacks).exists() and cache.md5_of(archive) != remote.md5
    note = f"not as published (checksum): {archive.name}\n" if wrong else ""
    return extract(archive, into, remote.unpacks, progress, note)


def need(folder: Path, remote: Remote, *files: str) -> None:
    """Refuse a folder in which one of these files of an archive is missing."""
    for file in files:
        if not (folder / file).is_file():
            raise UserError(f"{folder / file} is missing. Fetch {remote.file} again and unpack it.")


def check_labels(labels: np.ndarray, classes: int, path: Path) -> np.ndarray:
    """Labels as int64, refused where one is no class number."""
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise UserError(f"{path} holds the label {wrong}, but its classes are 0 to {classes - 1}. Fetch it again.")
    return np.ascontiguousarray(labels, dtype=np.int64)


def names_in(path: Path, known: Sequence[str]) -> tuple[str, ...]:
    """The words in a file with the names of classes; where it is missing, the known names."""
    return tuple(path.read_text("utf-8", errors="replace").split()) if path.is_file() else tuple(known)


def resized(images: np.ndarray, size: int | None) -> np.ndarray:
    """Images at the size asked for, if one was; refused before they are made where they would not fit into memory."""
    if size is None or images.shape[2:] == (size, size):
        return images
    count, have = len(images) * images.shape[1] * size * size, memory()
    if have is not None and count > have // 2:
        raise UserError(
            f"{len(images):,} images of {size}x{size} take {in_gigabytes(count)}; this machine has "
            f"{in_gigabytes(have)}. Set a smaller image_size."
        )
    from osp.data.decode import resize_batch

    return resize_batch(images, size)
