"""STL-10 (Coates et al., 2011): 5,000 labelled and 100,000 unlabelled training images, 8,000 test images, 96x96.

The training set is the labelled images followed by the unlabelled ones, whose label is -1.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from osp.data import cache
from osp.data.imageset import ImageSet, PixelKey
from osp.data.packed import unpack_or_fetch
from osp.data.source import Description, Remote, Request, Source, SourceInfo, SplitDefaults, per_class
from osp.data.sources.base import check_labels, find_folder, histogram, moments_of_histogram, variant_of
from osp.errors import UserError

FOLDER = "stl10_binary"
REMOTE = Remote("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb")
ARCHIVE = REMOTE.file
SIDE, SIZE = 96, 32
IMAGE_BYTES = 3 * SIDE * SIDE
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
MD5 = {
    "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "5a34089d4802c674881badbb80307741",
    "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
    "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
}
COUNTS = {"train_X.bin": 5_000, "unlabeled_X.bin": 100_000, "test_X.bin": 8_000}
CHUNK = 250


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Resize the 3 GB once; map the small images after that."""
    folder, counts, labels = _counted(request)
    name, size = request.name, request.size or SIZE
    statuses = [(folder / file).stat() for file in COUNTS]
    mark = cache.digest([(status.st_size, status.st_mtime_ns) for status in statuses])

    def build(writer: cache.ArrayWriter) -> dict[str, Any]:
        return _resize(writer, folder, counts, size, request)

    entry = cache.cached(name, f"{folder}|{size}", mark, (3, size, size), build)
    mean, std = tuple(entry.notes["mean"]), tuple(entry.notes["std"])
    unknown = np.full(counts["unlabeled_X.bin"], -1, dtype=np.int64)
    border = counts["train_X.bin"] + counts["unlabeled_X.bin"]
    variant, names = _variant(folder, counts), _class_names(folder)
    train_labels = np.concatenate([labels["train_y.bin"], unknown])
    keys = entry.notes.get("pixels") or (None, None)
    train = ImageSet(name, entry.images[:border], train_labels, names, mean, std, variant, pixels=keys[0])
    test = ImageSet(name, entry.images[border:], labels["test_y.bin"], names, mean, std, variant, pixels=keys[1])
    return train, test


def _counted(request: Request) -> tuple[Path, dict[str, int], dict[str, np.ndarray]]:
    """The folder, how many images each file holds by its size, and the labels."""
    folder = _find(request.root) or unpack_or_fetch(request, REMOTE, FOLDER)
    counts = {file: _count(folder / file) for file in COUNTS}
    labels = {file: _labels(folder / file, counts[file.replace("_y", "_X")]) for file in ("train_y.bin", "test_y.bin")}
    return folder, counts, labels


def _resize(
    writer: cache.ArrayWriter, folder: Path, counts: dict[str, int], size: int, request: Request
) -> dict[str, Any]:
    from osp.data.decode import resize_batch
    from osp.data.decode_pool import usable_cores

    tally = np.zeros((3, 256), np.int64)
    keys = {"train": PixelKey(), "test": PixelKey()}
    total, done = sum(counts.values()), 0
    with ThreadPoolExecutor(usable_cores()) as threads:  # Pillow resizes without the interpreter's lock
        for file, count in counts.items():
            stored = np.memmap(folder / file, np.uint8, mode="r", shape=(count, 3, SIDE, SIDE))
            for images in _ahead(threads, stored, resize_batch, size):
                writer.append(images)
                if file != "test_X.bin":
                    tally += histogram(images)
                keys["test" if file == "test_X.bin" else "train"].update(images)
                done += len(images)
                if request.progress:
                    request.progress(done, total, f"Resizing {folder.name}")
    mean, std = moments_of_histogram(tally)
    return {"mean": mean, "std": std, "pixels": [key.hexdigest() for key in keys.values()]}


def _ahead(threads: ThreadPoolExecutor, stored: np.ndarray, resize: Any, size: int) -> Iterator[np.ndarray]:
    """Resized chunks in order. Images are stored column by column: rows and columns change places."""
    step = 16 * CHUNK
    for start in range(0, len(stored), step):
        block = stored[start : start + step].transpose(0, 1, 3, 2)
        pieces = [block[at : at + CHUNK] for at in range(0, len(block), CHUNK)]
        yield from threads.map(resize, pieces, [size] * len(pieces))


def _find(root: Path) -> Path | None:
    return find_folder(root, (FOLDER, "stl10"), lambda f: (f / "train_X.bin").is_file())


def _count(path: Path) -> int:
    if not path.is_file():
        raise UserError(f"{path} is missing. Fetch {ARCHIVE} again and unpack it.")
    size = path.stat().st_size
    if size == 0 or size % IMAGE_BYTES:
        raise UserError(
            f"{path} should be a multiple of {IMAGE_BYTES:,} bytes (published: "
            f"{COUNTS[path.name] * IMAGE_BYTES:,}), but {size:,} were found. Fetch {ARCHIVE} again."
        )
    return size // IMAGE_BYTES


def _labels(path: Path, count: int) -> np.ndarray:
    """Stored as 1 to 10."""
    if not path.is_file():
        raise UserError(f"{path} is missing. Fetch {ARCHIVE} again and unpack it.")
    stored = np.fromfile(path, np.uint8)
    if len(stored) != count:
        raise UserError(f"{path} should hold {count:,} bytes, one for each image, but {len(stored):,} were found.")
    if stored.min() < 1 or stored.max() > 10:
        raise UserError(f"{path} holds the label {stored[(stored < 1) | (stored > 10)][0]}, but they go from 1 to 10.")
    return check_labels(stored.astype(np.int64) - 1, 10, path)


def _class_names(folder: Path) -> tuple[str, ...]:
    path = folder / "class_names.txt"
    names = tuple(path.read_text("utf-8", errors="replace").split()) if path.is_file() else CLASSES
    return names if len(names) == 10 else CLASSES


def _variant(folder: Path, counts: dict[str, int], compute: bool = True) -> str | None:
    different = [f"{counts[file]:,} images in {file} instead of {COUNTS[file]:,}" for file in COUNTS
                 if counts[file] != COUNTS[file]]  # fmt: skip
    stated = variant_of(folder)
    return stated or "; ".join(different) or variant_of(folder, MD5, compute)


def describe(request: Request) -> Description:
    """The labels, and counts from the files' sizes."""
    folder, counts, labels = _counted(request)
    train, test = (per_class(labels[file], len(CLASSES)) for file in ("train_y.bin", "test_y.bin"))
    side, unknown = request.size or SIZE, counts["unlabeled_X.bin"]
    return Description(request.name, _class_names(folder), train, test, (3, side, side), train_unknown=unknown)


def look(request: Request) -> SourceInfo:
    """Counts from the files' sizes; the variant as far as it is already known, since 3 GB take a while to sum."""
    from osp.data.download import how_to_get

    name, root = request.name, request.root
    folder = _find(root)
    if folder is None:
        if (root / ARCHIVE).is_file():
            how = "unpacked at the first use"
            return SourceInfo(name, True, str(root / ARCHIVE), 105_000, 8_000, (3, SIZE, SIZE), how=how)
        return SourceInfo(name, False, str(root / FOLDER), how=how_to_get([REMOTE], root))
    counts = {file: _count(folder / file) for file in COUNTS}
    train = counts["train_X.bin"] + counts["unlabeled_X.bin"]
    variant = _variant(folder, counts, compute=False)
    return SourceInfo(name, True, str(folder), train, counts["test_X.bin"], (3, SIZE, SIZE), variant)


SOURCE = Source(
    load=load,
    describe=describe,
    look=look,
    remotes=(REMOTE,),
    # 100 labelled and 200 unlabelled of the 500 images per class, 20,000 of the part without labels
    within=SplitDefaults(None, 100, unlabeled=22_000, ood_count=20_000, val_per_class=50),
    across=SplitDefaults(),
)
