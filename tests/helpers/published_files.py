"""Writers of small files in the published formats."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def rgb(count: int, side: int = 32, seed: int = 0) -> np.ndarray:
    """Random uint8 images count x 3 x side x side."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3, side, side), dtype=np.uint8)


def cifar10_python(root: Path, per_batch: int = 20) -> np.ndarray:
    """cifar-10-batches-py with its keys as bytes, as in the published pickles; the training images."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = rgb(6 * per_batch)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for index, name in enumerate(names):
        rows = images[index * per_batch : (index + 1) * per_batch].reshape(per_batch, -1)
        batch = {b"data": rows, b"labels": [i % 10 for i in range(per_batch)]}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    labels = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": labels}, 2))
    return images[: 5 * per_batch]


def save_images(folder: Path, count: int, side: int = 20, seed: int = 0, suffix: str = ".png") -> None:
    """Random images 0.png, 1.png, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, pixels in enumerate(rgb(count, side, seed)):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"{index:03}{suffix}")


def tiny_imagenet(root: Path, wnids: tuple[str, ...] = ("n03", "n01", "n02"), per_class: int = 6) -> Path:
    """tiny-imagenet-200 with few classes, at the published 64x64."""
    folder = root / "tiny-imagenet-200"
    for index, wnid in enumerate(wnids):
        save_images(folder / "train" / wnid / "images", per_class, 64, index, ".JPEG")
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("not an image\n")
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane, bird\nn99\tdog\n")
    save_images(folder / "val" / "images", 4, 64, 9, ".JPEG")
    lines = [f"{i:03}.JPEG\t{wnids[i % len(wnids)]}\t0\t0\t9\t9\n" for i in range(4)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def stl10(root: Path, train: int = 30, unlabeled: int = 700, test: int = 20) -> dict[str, np.ndarray]:
    """stl10_binary with few images; the images by file, upright."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    images = {}
    for seed, (name, count) in enumerate((("train", train), ("unlabeled", unlabeled), ("test", test))):
        images[name] = np.kron(rgb(count, 32, seed), np.ones((1, 1, 3, 3), np.uint8))  # 96x96, blocks of 3x3
        images[name].transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")
        if name != "unlabeled":
            (np.arange(count) % 10 + 1).astype(np.uint8).tofile(folder / f"{name}_y.bin")
    return images
