"""scikit-learn's embedded 8x8 digits: 1,797 scanned digits that need no file and no network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from osp.data.images import ImageSet, levels, moments
from osp.data.published import resized
from osp.data.source import Request, Source, SplitDefaults, always

CLASSES = tuple(str(digit) for digit in range(10))


def read() -> tuple[np.ndarray, np.ndarray]:
    """Pixels from 0 to 16, and labels, from scikit-learn's file: importing the package takes a second."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """A fixed third of each class is the test set, whatever the seed."""
    from osp.randomness import permutation

    pixels, labels = read()
    images = np.rint(pixels.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = labels.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        is_test[members[permutation(len(members), "digits", "test", digit)[: len(members) // 3]]] = True
    images = resized(images, request.size)
    mean, std = moments(levels(images[~is_test]))
    train, test = (
        ImageSet(request.name, images[chosen], labels[chosen], CLASSES, mean, std, mirror=False, cutout=False)
        for chosen in (~is_test, is_test)
    )
    return train, test


SOURCE = Source(
    load=load,  # and described by it: it takes milliseconds
    look=always("part of scikit-learn", 1201, 596, (1, 8, 8), "nothing to do"),
    grey=True,
    within=SplitDefaults(tuple(range(6)), 10, ood_ratio=0.6, val_per_class=10),
)
