"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): the published pickles, the binary version, or either's archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.imageset import ImageSet
from osp.data.sources.base import Request, SourceInfo, check_labels, find_folder, resized, variant_of
from osp.data.sources.packed import unpack_or_fetch
from osp.errors import UserError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """One published form of a set."""

    folder: str
    archive: str
    archive_md5: str
    train: tuple[str, ...]
    test: str
    names: str
    """The file with the names of the classes."""
    md5: dict[str, str]
    label: str
    """The key of the labels in a pickle."""
    label_bytes: int = 0
    """Bytes of label before each image of the binary version; 0 for pickles."""


CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LAYOUTS = {
    "cifar10": (
        Layout(
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            tuple(f"data_batch_{i}" for i in range(1, 6)),
            "test_batch",
            "batches.meta",
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            "labels",
        ),
        Layout(
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            "test_batch.bin",
            "batches.meta.txt",
            {},
            "labels",
            label_bytes=1,
        ),
    ),
    "cifar100": (
        Layout(
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            ("train",),
            "test",
            "meta",
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            "fine_labels",
        ),
        Layout(
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            ("train.bin",),
            "test.bin",
            "fine_label_names.txt",
            {},
            "fine_labels",
            label_bytes=2,
        ),
    ),
}
CLASSES = {"cifar10": 10, "cifar100": 100}
MOMENTS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


def load(name: str, request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Read the batches, from whichever form is there."""
    layout, folder = _find(name, request.root) or _unpack_or_fetch(name, request)
    for file in (*layout.train, layout.test):
        if not (folder / file).is_file():
            raise UserError(f"{folder / file} is missing. Fetch {layout.archive} again and unpack it.")
    classes = CLASSES[name]
    names = _class_names(name, layout, folder)
    variant = variant_of(folder, layout.md5)
    sets = []
    for files in (layout.train, (layout.test,)):
        parts = [_read(folder / file, layout, classes) for file in files]
        images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([labels for _, labels in parts])
        mean, std = MOMENTS[name]
        sets.append(ImageSet(name, resized(images, request.size), labels, names, mean, std, variant=variant))
    return sets[0], sets[1]


def _find(name: str, root: Path) -> tuple[Layout, Path] | None:
    for layout in LAYOUTS[name]:
        wanted = {layout.train[0], layout.test, layout.names}
        folder = find_folder(
            root,
            (layout.folder,),
            lambda f, wanted=wanted: sum((f / w).is_file() for w in wanted) >= 2,  # type: ignore[misc]
        )
        if folder is not None:
            return layout, folder
    return None


def _unpack_or_fetch(name: str, request: Request) -> tuple[Layout, Path]:
    layouts = LAYOUTS[name]
    layout = next((layout for layout in layouts if (request.root / layout.archive).is_file()), layouts[0])
    return layout, unpack_or_fetch(name, request, layout.archive, layout.folder, layout.archive_md5)


def _read(path: Path, layout: Layout, classes: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _read_binary(path, layout) if layout.label_bytes else _read_pickle(path, layout)
    if not len(images):
        raise UserError(f"{path} holds no image. Fetch {layout.archive} again.")
    return images, check_labels(labels, classes, path)


def _read_binary(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, np.uint8)
    record = layout.label_bytes + PIXELS
    if len(content) % record:
        raise UserError(
            f"{path} should be a multiple of {record:,} bytes (published: {record * 10_000:,} per 10,000 images), "
            f"but {len(content):,} were found. Fetch {layout.archive} again."
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
            f"{path.stat().st_size:,} were found. Fetch {layout.archive} again."
        ) from None
    content = _by_name(batch, path)
    data, labels = content.get("data"), content.get(layout.label)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise UserError(f"{path} holds no rows of {PIXELS:,} bytes under 'data'. Fetch {layout.archive} again.")
    if not isinstance(labels, list | np.ndarray) or not all(isinstance(label, int | np.integer) for label in labels):
        raise UserError(f"{path} holds no list of labels under {layout.label!r}. Fetch {layout.archive} again.")
    if len(labels) != len(data):
        raise UserError(f"{path} holds {len(data):,} images but {len(labels):,} labels. Fetch {layout.archive} again.")
    return np.asarray(data), np.asarray([int(label) for label in labels], np.int64)


def _by_name(batch: Any, path: Path) -> dict[str, Any]:
    if not isinstance(batch, dict):
        raise UserError(f"{path} is not a batch of images. Fetch it again.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in batch.items()}


def _class_names(name: str, layout: Layout, folder: Path) -> tuple[str, ...]:
    """From the file beside the batches; where it is missing, the known names, or numbers."""
    path, classes = folder / layout.names, CLASSES[name]
    names: list[str] = []
    if path.is_file() and layout.label_bytes:
        names = path.read_text("utf-8", errors="replace").split()
    elif path.is_file():
        from osp.data.unpickle import load_plain

        listed = _by_name(load_plain(path), path).get(layout.label[:-1] + "_names", [])
        names = [item.decode("latin1") if isinstance(item, bytes) else str(item) for item in listed]
    if path.is_file() and len(names) != classes:
        raise UserError(f"{path} names {len(names)} classes instead of {classes}. Fetch {layout.archive} again.")
    return tuple(names or (CIFAR10_NAMES if name == "cifar10" else map(str, range(classes))))


def look(name: str, root: Path) -> SourceInfo:
    """Published counts for pickles (which would have to be read whole), true ones for the binary version."""
    from osp.data.download import how_to_get

    found = _find(name, root)
    shape = (3, 32, 32)
    if found is None:
        archive = next((root / one.archive for one in LAYOUTS[name] if (root / one.archive).is_file()), None)
        if archive is not None:
            return SourceInfo(name, True, str(archive), 50_000, 10_000, shape, how="unpacked at the first use")
        return SourceInfo(name, False, str(root), how=how_to_get(name, root))
    layout, folder = found
    missing = [file for file in (*layout.train, layout.test) if not (folder / file).is_file()]
    if missing:
        return SourceInfo(name, False, str(folder), how=how_to_get(name, root), problem=f"{missing[0]} is missing")
    train, test = 50_000, 10_000
    if layout.label_bytes:
        record = layout.label_bytes + PIXELS
        train = sum((folder / file).stat().st_size for file in layout.train) // record
        test = (folder / layout.test).stat().st_size // record
    return SourceInfo(name, True, str(folder), train, test, shape, variant_of(folder, layout.md5))
