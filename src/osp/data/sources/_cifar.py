"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): the published pickles, the binary version, or either's archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.imageset import ImageSet
from osp.data.packed import unpack_or_fetch
from osp.data.source import Description, Remote, Request, Source, SourceInfo, SplitDefaults, per_class
from osp.data.sources.base import check_labels, find_folder, resized, variant_of
from osp.errors import UserError

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Layout:
    """One published form of a set."""

    folder: str
    remote: Remote
    train: tuple[str, ...]
    test: str
    names: str
    """The file with the names of the classes."""
    md5: dict[str, str]
    label: str
    """The key of the labels in a pickle."""
    label_bytes: int = 0
    """Bytes of label before each image of the binary version; 0 for pickles."""


@dataclass(frozen=True)
class Cifar:
    """One of the two sets, as `cifar10.py` and `cifar100.py` declare it."""

    layouts: tuple[Layout, ...]
    names: tuple[str, ...]
    """Used where the file with the names is missing."""
    train_per_class: int
    test_per_class: int
    """As published."""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.names)

    def source(self, within: SplitDefaults, across: SplitDefaults | None = None) -> Source:
        """The declaration."""
        return Source(
            load=self.load,
            describe=self.describe,
            look=self.look,
            remotes=(self.layouts[0].remote,),
            class_sizes=(self.train_per_class,) * len(self.names),
            within=within,
            across=across,
        )

    def load(self, request: Request) -> tuple[ImageSet, ImageSet | None]:
        """Read the batches, from whichever form is there."""
        layout, folder = self._open(request)
        names = _class_names(layout, folder, self.names)
        variant = variant_of(folder, layout.md5)
        sets = []
        for files in (layout.train, (layout.test,)):
            parts = [_read(folder / file, layout, self.classes) for file in files]
            images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, SIDE, SIDE)
            labels = np.concatenate([labels for _, labels in parts])
            pixels = resized(images, request.size)
            sets.append(ImageSet(request.name, pixels, labels, names, self.mean, self.std, variant=variant))
        return sets[0], sets[1]

    def describe(self, request: Request) -> Description:
        """Published files have the published counts; of others the labels are read."""
        layout, folder = self._open(request)
        side = request.size or SIDE
        if not layout.label_bytes and variant_of(folder, layout.md5) is None:
            train, test = (self.train_per_class,) * self.classes, (self.test_per_class,) * self.classes
        else:
            train, test = (self._count(folder, layout, files) for files in (layout.train, (layout.test,)))
        return Description(request.name, _class_names(layout, folder, self.names), train, test, (3, side, side))

    def look(self, request: Request) -> SourceInfo:
        """Published counts for pickles (which would have to be read whole), true ones for the binary version."""
        from osp.data.download import how_to_get

        name, root = request.name, request.root
        found = self._find(root)
        shape = (3, SIDE, SIDE)
        train, test = self.train_per_class * self.classes, self.test_per_class * self.classes
        how = how_to_get([self.layouts[0].remote], root)
        if found is None:
            archives = (root / layout.remote.file for layout in self.layouts)
            archive = next((path for path in archives if path.is_file()), None)
            if archive is not None:
                return SourceInfo(name, True, str(archive), train, test, shape, how="unpacked at the first use")
            return SourceInfo(name, False, str(root), how=how)
        layout, folder = found
        missing = [file for file in (*layout.train, layout.test) if not (folder / file).is_file()]
        if missing:
            return SourceInfo(name, False, str(folder), how=how, problem=f"{missing[0]} is missing")
        if layout.label_bytes:
            record = layout.label_bytes + PIXELS
            train = sum((folder / file).stat().st_size for file in layout.train) // record
            test = (folder / layout.test).stat().st_size // record
        return SourceInfo(name, True, str(folder), train, test, shape, variant_of(folder, layout.md5))

    def _count(self, folder: Path, layout: Layout, files: tuple[str, ...]) -> tuple[int, ...]:
        labels = [_read(folder / file, layout, self.classes)[1] for file in files]
        return per_class(np.concatenate(labels), self.classes)

    def _open(self, request: Request) -> tuple[Layout, Path]:
        layout, folder = self._find(request.root) or self._unpack_or_fetch(request)
        for file in (*layout.train, layout.test):
            if not (folder / file).is_file():
                raise UserError(f"{folder / file} is missing. Fetch {layout.remote.file} again and unpack it.")
        return layout, folder

    def _find(self, root: Path) -> tuple[Layout, Path] | None:
        for layout in self.layouts:
            wanted = {layout.train[0], layout.test, layout.names}
            folder = find_folder(
                root,
                (layout.folder,),
                lambda f, wanted=wanted: sum((f / w).is_file() for w in wanted) >= 2,  # type: ignore[misc]
            )
            if folder is not None:
                return layout, folder
        return None

    def _unpack_or_fetch(self, request: Request) -> tuple[Layout, Path]:
        there = (layout for layout in self.layouts if (request.root / layout.remote.file).is_file())
        layout = next(there, self.layouts[0])
        return layout, unpack_or_fetch(request, layout.remote, layout.folder)


def _read(path: Path, layout: Layout, classes: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _read_binary(path, layout) if layout.label_bytes else _read_pickle(path, layout)
    if not len(images):
        raise UserError(f"{path} holds no image. Fetch {layout.remote.file} again.")
    return images, check_labels(labels, classes, path)


def _read_binary(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, np.uint8)
    record = layout.label_bytes + PIXELS
    if len(content) % record:
        raise UserError(
            f"{path} should be a multiple of {record:,} bytes (published: {record * 10_000:,} per 10,000 images), "
            f"but {len(content):,} were found. Fetch {layout.remote.file} again."
        )
    content = content.reshape(-1, record)
    return content[:, layout.label_bytes :], content[:, layout.label_bytes - 1].astype(np.int64)


def _read_pickle(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    from osp.data.unpickle import load_plain

    try:
        batch = load_plain(path)
    except UserError as error:
        if "too early" not in str(error):
            raise
        per = 50_000 if path.name == "train" else 10_000
        raise UserError(
            f"{path} is cut short: {per:,} images need at least {per * PIXELS:,} bytes, but "
            f"{path.stat().st_size:,} were found. Fetch {layout.remote.file} again."
        ) from None
    content = _by_name(batch, path)
    data, labels = content.get("data"), content.get(layout.label)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise UserError(f"{path} holds no rows of {PIXELS:,} bytes under 'data'. Fetch {layout.remote.file} again.")
    if not isinstance(labels, list | np.ndarray) or not all(isinstance(label, int | np.integer) for label in labels):
        raise UserError(f"{path} holds no list of labels under {layout.label!r}. Fetch {layout.remote.file} again.")
    if len(labels) != len(data):
        raise UserError(
            f"{path} holds {len(data):,} images but {len(labels):,} labels. Fetch {layout.remote.file} again."
        )
    return np.asarray(data), np.asarray([int(label) for label in labels], np.int64)


def _by_name(batch: Any, path: Path) -> dict[str, Any]:
    if not isinstance(batch, dict):
        raise UserError(f"{path} is not a batch of images. Fetch it again.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in batch.items()}


def _class_names(layout: Layout, folder: Path, known: tuple[str, ...]) -> tuple[str, ...]:
    """From the file beside the batches; where it is missing, the known names."""
    path = folder / layout.names
    if not path.is_file():
        return known
    if layout.label_bytes:
        names = path.read_text("utf-8", errors="replace").split()
    else:
        from osp.data.unpickle import load_plain

        listed = _by_name(load_plain(path), path).get(layout.label[:-1] + "_names", [])
        names = [item.decode("latin1") if isinstance(item, bytes) else str(item) for item in listed]
    if len(names) != len(known):
        raise UserError(f"{path} names {len(names)} classes instead of {len(known)}. Fetch {layout.remote.file} again.")
    return tuple(names)
