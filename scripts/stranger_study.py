"""Is what `osp fit` says of a pile true? Its share that belongs, the strangers that are let in, and who is sure.

python scripts/stranger_study.py FOLDER [--known 4] [--labels 5 10 20] [--draws 9] [--first 100]

FOLDER has one folder per class. In each draw some classes are known and some photos of theirs are labeled; the rest of
all classes is the pile. It is asked as it is, with most of its known photos taken out, with most of its unknown ones,
and with all unknown ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from osp.data.folders import list_images
from osp.evaluate.belonging import Belonging
from osp.models.instant import Instant
from osp.nets.pretrained import efficientnet_lite0
from osp.photos.features import compute
from osp.photos.instant import fit_instant

PILES = {"as it is": (1.0, 1.0), "few known": (0.25, 1.0), "few unknown": (1.0, 0.25), "no unknown": (1.0, 0.0)}
"""Shares of the known and of the unknown photos that are left."""
SURE = 0.8


def fits(
    features: np.ndarray, classes: np.ndarray, known: int, labels: int, seed: int, left: tuple[float, float]
) -> tuple[Instant, np.ndarray, np.ndarray]:
    """The answer of one draw, and of its pile the features and the class, -1 for none of the known ones."""
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(classes.max() + 1)[:known])
    labeled, pile = [], []
    for c in range(classes.max() + 1):
        rows, mine = generator.permutation(np.flatnonzero(classes == c)), c in chosen
        labeled.append(rows[: labels if mine else 0])
        rest = rows[len(labeled[-1]) :]
        pile.append(rest[: round(left[0 if mine else 1] * len(rest))])
    taught, asked = np.concatenate(labeled), np.concatenate(pile)
    truth = np.where(np.isin(classes[asked], chosen), np.searchsorted(chosen, classes[asked]), -1)
    names = [str(c) for c in chosen]
    return fit_instant(features[taught], np.searchsorted(chosen, classes[taught]), features[asked], names), asked, truth


def figures(instant: Instant, belonging: Belonging, features: np.ndarray, truth: np.ndarray) -> list[float]:
    """In percent: error of the share, whether the interval holds it, error of the strangers among those let in, how
    many are sure, and how many of these are right."""
    probabilities, scores = instant.answer(features)
    chance, inside, belongs = belonging.chance(scores), scores <= instant.threshold(), truth >= 0
    sure = inside & (chance * probabilities.max(axis=1) >= SURE)
    right = probabilities.argmax(axis=1) == truth
    return [
        100 * abs(belonging.share - belongs.mean()),
        100.0 * (belonging.low - 0.005 <= belongs.mean() <= belonging.high + 0.005),
        100 * abs((1 - chance[inside]).mean() - (~belongs[inside]).mean()),
        100 * sure.mean(),
        100 * right[sure].mean() if sure.any() else np.nan,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--known", type=int, default=4)
    parser.add_argument("--labels", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--draws", type=int, default=9)
    parser.add_argument("--first", type=int, default=100)
    given = parser.parse_args()
    found = compute([file.path for file in list_images(given.folder, deep=True)], efficientnet_lite0(), ["plain"])
    names = [Path(file).relative_to(given.folder.absolute()).parts[0] for file in found.files]
    features, classes = found.rows(view="plain"), np.unique(names, return_inverse=True)[1]
    print("| labels per class, pile | share off by | interval holds it | strangers off by | sure | of these right |")
    print("|---|---|---|---|---|---|")
    for labels in given.labels:
        for pile, left in PILES.items():
            rows = []
            for seed in range(given.first, given.first + given.draws):
                instant, asked, truth = fits(features, classes, given.known, labels, seed, left)
                assert instant.belonging is not None
                rows.append(figures(instant, instant.belonging, features[asked], truth))
            means = " | ".join(f"{mean:.0f}" for mean in np.nanmean(rows, axis=0))
            print(f"| {labels}, {pile} | {means} |", flush=True)


if __name__ == "__main__":
    main()
