"""Few labels on photographs: logistic regression on frozen features beside the instant answer, over ten draws.

python scripts/photo_study.py FOLDER_WITH_ONE_FOLDER_PER_CLASS [--known 4] [--labels 1 5 20] [--draws 10] [--test 40]

In each draw some classes are known; of every class some images are kept aside for testing. The labelled images are
drawn from the rest of the known classes; what remains of all classes is the pile. Means over the draws, ± their
standard deviation. After the first pass, features come from the cache and the table takes seconds.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from osp.data.listing import list_images
from osp.evaluate.metrics import detection
from osp.nets.pretrained import efficientnet_lite0
from osp.photos.estimates import calibration_error
from osp.photos.features import compute
from osp.photos.instant import fit_instant


def draw(
    classes: np.ndarray, known: int, labels: int, test: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of labelled images, pile and test images, and which classes are known."""
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(classes.max() + 1)[:known])
    labeled, pile, kept_aside = [], [], []
    for c in range(classes.max() + 1):
        rows = generator.permutation(np.flatnonzero(classes == c))
        kept_aside.append(rows[:test])
        labeled.append(rows[test : test + labels] if c in chosen else rows[:0])
        pile.append(rows[test + len(labeled[-1]) :])
    return np.concatenate(labeled), np.concatenate(pile), np.concatenate(kept_aside), chosen


def one(features: np.ndarray, classes: np.ndarray, known: int, labels: int, test: int, seed: int) -> dict[str, float]:
    """All figures of one draw, in percent."""
    from sklearn.linear_model import LogisticRegression

    labeled, pile, kept_aside, chosen = draw(classes, known, labels, test, seed)
    targets = np.searchsorted(chosen, classes[labeled])
    belongs, pile_belongs = np.isin(classes[kept_aside], chosen), np.isin(classes[pile], chosen)
    truth = np.searchsorted(chosen, classes[kept_aside][belongs])

    raw = features.astype(np.float32)
    plain = LogisticRegression(max_iter=1000).fit(raw[labeled], targets)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    scores = 1 - (unit[kept_aside] @ unit[labeled].T).max(axis=1)
    figures = {
        "LR accuracy": float((plain.predict(raw[kept_aside][belongs]) == truth).mean() * 100),
        "LR + nearest label AUROC": detection(scores[belongs], scores[~belongs])["auroc"] or 0.0,
    }
    begin = time.perf_counter()
    instant = fit_instant(features[labeled], targets, features[pile], [str(c) for c in chosen])
    seconds = time.perf_counter() - begin
    scores = instant.ood_score(features[kept_aside])
    pile_scores = instant.ood_score(features[pile])
    probabilities = instant.predict_proba(features[kept_aside][belongs])
    linear = instant.logits(features[kept_aside][belongs], smooth=False)
    threshold = instant.threshold()
    estimate = instant.estimate
    return figures | {
        "instant accuracy": float((probabilities.argmax(axis=1) == truth).mean() * 100),
        "instant accuracy, linear head alone": float((linear.argmax(axis=1) == truth).mean() * 100),
        "instant accuracy by cross-validation": estimate.accuracy if estimate else np.nan,
        "instant AUROC": detection(scores[belongs], scores[~belongs])["auroc"] or 0.0,
        "instant AUROC in the pile": detection(pile_scores[pile_belongs], pile_scores[~pile_belongs])["auroc"] or 0.0,
        "instant ECE": calibration_error(probabilities, truth) * 100,
        "instant ECE by cross-validation": estimate.ece if estimate else np.nan,
        "known accepted": float((scores[belongs] <= threshold).mean() * 100),
        "foreign accepted": float((scores[~belongs] <= threshold).mean() * 100),
        "share of the pile, estimated": instant.share(pile_scores) * 100,
        "share of the pile, true": float(pile_belongs.mean() * 100),
        "temperature": instant.temperature,
        "strength": instant.strength,
        "smoothing": instant.smoothing,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--known", type=int, default=4)
    parser.add_argument("--labels", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--test", type=int, default=40)
    given = parser.parse_args()
    files = [file.path for file in list_images(given.folder, deep=True)]
    found = compute(files, efficientnet_lite0(), progress=lambda done, total, text: print(f"\r{text} {done}/{total}"))
    names = [Path(file).relative_to(given.folder.absolute()).parts[0] for file in found.files]
    classes = np.unique(names, return_inverse=True)[1]
    features = found.rows()
    table: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for labels in given.labels:
        for seed in range(given.draws):
            for name, value in one(features, classes, given.known, labels, given.test, seed).items():
                table[name][labels].append(value)
    print(f"\n| labels per class | {' | '.join(str(labels) for labels in given.labels)} |")
    print("|---|" + "---|" * len(given.labels))
    for name, columns in table.items():
        cells = [f"{np.mean(columns[n]):.1f} ± {np.std(columns[n]):.1f}" for n in given.labels]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
