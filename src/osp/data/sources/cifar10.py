"""CIFAR-10 (Krizhevsky, 2009): ten classes of 32x32 photographs; and how both CIFAR sets are read.

They come as the published pickles, as the binary version, or as either's archive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.images import ImageSet
from osp.data.published import Published, check_labels, names_in, need, resized
from osp.data.source import Description, Remote, Request, SplitDefaults
from osp.errors import UserError

PIXELS = 3 * 32 * 32


def archive(name: str, md5: str, folder: str) -> Remote:
    return Remote(f"https://www.cs.toronto.edu/~kriz/{name}.tar.gz", md5, unpacks=folder)


@dataclass(frozen=True)
class Layout:
    """One published form of a set."""

    remote: Remote
    train: tuple[str, ...]
    test: str
    names: str  # the file with the names of the classes
    label: str  # the key of the labels in a pickle
    label_bytes: int = 0  # bytes of label before each image of the binary version; 0 for pickles
    md5: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> tuple[str, ...]:
        return *self.train, self.test


class Cifar(Published):
    """One of the two sets; `names` are used where the file with the names is missing."""

    def __init__(
        self, layouts: tuple[Layout, ...], names: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        remotes = tuple(layout.remote for layout in layouts)
        folders = tuple(remote.unpacks for remote in remotes)
        super().__init__(remotes=remotes, folders=folders, counts=(50_000, 0, 10_000))
        self.layouts, self.names, self.mean, self.std = layouts, names, mean, std

    def has(self, folder: Path) -> bool:
        return self._layout(folder) is not None

    def _layout(self, folder: Path) -> Layout | None:
        """The form that two of three files tell."""
        for layout in self.layouts:
            if sum((folder / file).is_file() for file in {layout.train[0], layout.test, layout.names}) >= 2:
                return layout
        return None

    def _open(self, folder: Path) -> Layout:
        layout = self._layout(folder) or self.layouts[0]
        need(folder, layout.remote, *layout.files)
        return layout

    def md5_in(self, folder: Path) -> Mapping[str, str]:
        return self._open(folder).md5

    def read(self, folder: Path, request: Request) -> tuple[ImageSet, ImageSet | None]:
        layout = self._open(folder)
        names, sets = self._names(folder, layout), []
        for files in (layout.train, (layout.test,)):
            parts = [self._batch(folder / file, layout) for file in files]
            images = np.concatenate([images for images, _ in parts]).reshape(-1, *self.shape)
            labels = np.concatenate([labels for _, labels in parts])
            pixels = resized(images, request.size)
            sets.append(ImageSet(request.name, pixels, labels, names, self.mean, self.std))
        return sets[0], sets[1]

    def description(self, folder: Path, request: Request) -> Description:
        """Published files have the published counts; of others the labels are read."""
        layout = self._open(folder)
        if layout.md5 and self.variant(folder) is None:
            return self._published(folder, request)
        labels = [self._batch(folder / file, layout)[1] for file in layout.files]
        names, train = self._names(folder, layout), np.concatenate(labels[:-1])
        return Description.of(request.name, names, train, labels[-1], shape=self.sized(request))

    def glance(self, folder: Path, request: Request) -> Description:
        """Pickles as large as the published ones count as many images: reading all of them takes seconds."""
        layout, pixels = self._open(folder), sum(self.counts) * PIXELS
        size = sum((folder / file).stat().st_size for file in layout.files)
        as_large = layout.md5 and size >= pixels
        return self._published(folder, request) if as_large else self.description(folder, request)

    def _published(self, folder: Path, request: Request) -> Description:
        names = self._names(folder, self._open(folder))
        train, test = ((self.counts[part] // len(names),) * len(names) for part in (0, 2))
        return Description(request.name, names, train, test, self.sized(request))

    def _batch(self, path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _read_binary(path, layout) if layout.label_bytes else _read_pickle(path, layout)
        if not len(images):
            raise UserError(f"{path} holds no image. Fetch {layout.remote.file} again.")
        return images, check_labels(labels, len(self.names), path)

    def _names(self, folder: Path, layout: Layout) -> tuple[str, ...]:
        path = folder / layout.names
        if layout.label_bytes or not path.is_file():
            names = names_in(path, self.names)
        else:
            listed = _unpickled(path).get(layout.label[:-1] + "_names", [])
            names = tuple(item.decode("latin1") if isinstance(item, bytes) else str(item) for item in listed)
        if len(names) != len(self.names):
            wrong = f"{len(names)} classes instead of {len(self.names)}"
            raise UserError(f"{path} names {wrong}. Fetch {layout.remote.file} again.")
        return names


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
    again = f"Fetch {layout.remote.file} again."
    try:
        content = _unpickled(path)
    except UserError as error:
        if "too early" not in str(error):
            raise
        per = 50_000 if path.name == "train" else 10_000
        raise UserError(
            f"{path} is cut short: {per:,} images need at least {per * PIXELS:,} bytes, but "
            f"{path.stat().st_size:,} were found. {again}"
        ) from None
    data, labels = content.get("data"), content.get(layout.label)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise UserError(f"{path} holds no rows of {PIXELS:,} bytes under 'data'. {again}")
    if not isinstance(labels, list | np.ndarray) or not all(isinstance(label, int | np.integer) for label in labels):
        raise UserError(f"{path} holds no list of labels under {layout.label!r}. {again}")
    if len(labels) != len(data):
        raise UserError(f"{path} holds {len(data):,} images but {len(labels):,} labels. {again}")
    return np.asarray(data), np.asarray([int(label) for label in labels], np.int64)


def _unpickled(path: Path) -> dict[str, Any]:
    from osp.data.unpickle import load_plain

    batch = load_plain(path)
    if not isinstance(batch, dict):
        raise UserError(f"{path} is not a batch of images. Fetch it again.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in batch.items()}


CIFAR10 = Cifar(
    layouts=(
        Layout(
            archive("cifar-10-python", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
            tuple(f"data_batch_{i}" for i in range(1, 6)),
            "test_batch",
            "batches.meta",
            "labels",
            md5={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
        Layout(
            archive("cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
            tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            "test_batch.bin",
            "batches.meta.txt",
            "labels",
            label_bytes=1,
        ),
    ),
    names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2471, 0.2435, 0.2616),
)

SOURCE = CIFAR10.source(
    class_sizes=(5_000,) * 10,
    # Table 3 of the paper: the animals (bird, cat, deer, dog, frog, horse) are ID
    within=SplitDefaults(tuple(range(2, 8)), 400, unlabeled=20_000, ood_ratio=0.6, val_per_class=50),
    # the paper's inter-dataset setting
    across=SplitDefaults(labels_per_class=25, ood_count=10_000, val_per_class=500),
)
