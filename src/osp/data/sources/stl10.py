"""STL-10 (Coates et al., 2011): 5,000 labeled and 100,000 unlabeled training images, 8,000 test images, 96x96.

The training set is the labeled images followed by the unlabeled ones, whose label is -1.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.images import ImageSet, PixelSummary, moments
from osp.data.published import Published, names_in, need
from osp.data.source import Description, Remote, Request, SplitDefaults
from osp.errors import UserError
from osp.machine import cores

FOLDER = "stl10_binary"
REMOTE = Remote(
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb", unpacks=FOLDER
)
SIDE = 96
IMAGE_BYTES = 3 * SIDE * SIDE
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
COUNTS = {"train_X.bin": 5_000, "unlabeled_X.bin": 100_000, "test_X.bin": 8_000}
CHUNK, BLOCK = 250, 4_000  # images resized at once by one thread, and by all of them before the next are read


class Stl10(Published):
    """Five files of bytes: images column by column, and labels from 1 to 10."""

    def has(self, folder: Path) -> bool:
        return (folder / "train_X.bin").is_file()

    def description(self, folder: Path, request: Request) -> Description:
        """The labels, and counts from the files' sizes."""
        _, (train, test) = _counted(folder)
        return Description.of(request.name, _names(folder), train, test, shape=self.sized(request))

    def unlike(self, found: tuple[int, ...]) -> str | None:
        different = [f"{count:,} images in {file} instead of {COUNTS[file]:,}"
                     for file, count in zip(COUNTS, found, strict=True) if count != COUNTS[file]]  # fmt: skip
        return "; ".join(different) or None

    def read(self, folder: Path, request: Request) -> tuple[ImageSet, ImageSet | None]:
        """Resize the 3 GB once; map the small images after that."""
        counts, labels = _counted(folder)
        shape = self.sized(request)
        statuses = [(folder / file).stat() for file in COUNTS]
        mark = cache.digest([(status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in statuses])

        def build(writer: cache.ArrayWriter) -> dict[str, Any]:
            return _resize(writer, folder, counts, shape[1], request)

        entry = cache.cached(request.name, f"{folder}|{shape[1]}", mark, shape, build)
        facts = (_names(folder), tuple(entry.notes["mean"]), tuple(entry.notes["std"]))
        keys, parts = entry.notes.get("pixels") or (None, None), np.split(entry.images, [len(labels[0])])
        train, test = (
            ImageSet(request.name, images, numbers, *facts, pixels=key)
            for images, numbers, key in zip(parts, labels, keys, strict=True)
        )
        return train, test


def _counted(folder: Path) -> tuple[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]:
    """How many images each file holds by its size, and the labels of the training and the test images."""
    need(folder, REMOTE, *COUNTS, "train_y.bin", "test_y.bin")
    train, unlabeled, test = (_count(folder / file) for file in COUNTS)
    labels = np.append(_labels(folder / "train_y.bin", train), np.full(unlabeled, -1))
    return (train, unlabeled, test), (labels, _labels(folder / "test_y.bin", test))


def _resize(
    writer: cache.ArrayWriter, folder: Path, counts: tuple[int, ...], size: int, request: Request
) -> dict[str, Any]:
    from osp.data.decode import resize_batch

    train, test = PixelSummary(), PixelSummary()
    done = 0
    with ThreadPoolExecutor(cores()) as threads:  # Pillow resizes without the interpreter's lock
        for file, count in zip(COUNTS, counts, strict=True):
            stored = np.memmap(folder / file, np.uint8, mode="r", shape=(count, 3, SIDE, SIDE))
            upright = stored.transpose(0, 1, 3, 2)  # images are stored column by column
            for start in range(0, count, BLOCK):
                pieces = [upright[at : at + CHUNK] for at in range(start, min(start + BLOCK, count), CHUNK)]
                for images in threads.map(resize_batch, pieces, [size] * len(pieces)):
                    writer.append(images)
                    (test if file == "test_X.bin" else train).update(images)
                    done += len(images)
                    if request.progress:
                        request.progress(done, sum(counts), f"Resizing {folder.name}")
    mean, std = moments(train.levels)
    return {"mean": mean, "std": std, "pixels": [train.hexdigest(), test.hexdigest()]}


def _count(path: Path) -> int:
    size = path.stat().st_size
    if size == 0 or size % IMAGE_BYTES:
        raise UserError(
            f"{path} should be a multiple of {IMAGE_BYTES:,} bytes (published: "
            f"{COUNTS[path.name] * IMAGE_BYTES:,}), but {size:,} were found. Fetch {REMOTE.file} again."
        )
    return size // IMAGE_BYTES


def _labels(path: Path, count: int) -> np.ndarray:
    """Stored as 1 to 10."""
    stored = np.fromfile(path, np.uint8)
    if len(stored) != count:
        raise UserError(f"{path} should hold {count:,} bytes, one for each image, but {len(stored):,} were found.")
    if stored.min() < 1 or stored.max() > 10:
        raise UserError(f"{path} holds the label {stored[(stored < 1) | (stored > 10)][0]}, but they go from 1 to 10.")
    return stored.astype(np.int64) - 1


def _names(folder: Path) -> tuple[str, ...]:
    names = names_in(folder / "class_names.txt", CLASSES)
    return names if len(names) == len(CLASSES) else CLASSES


STL10 = Stl10(
    remotes=(REMOTE,),
    folders=(FOLDER, "stl10"),
    counts=(5_000, 100_000, 8_000),
    large=True,
    md5={
        "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
        "train_y.bin": "5a34089d4802c674881badbb80307741",
        "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
        "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
        "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    },
)

SOURCE = STL10.source(
    # 100 labeled and 200 unlabeled of the 500 images per class, 20,000 of the part without labels
    within=SplitDefaults(None, 100, unlabeled=22_000, ood_count=20_000, val_per_class=50),
    across=SplitDefaults(),
)
