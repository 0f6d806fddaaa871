"""Few labels on photographs: logistic regression, the instant answer and training from there, over ten draws.

python scripts/photo_study.py FOLDER_WITH_ONE_FOLDER_PER_CLASS [--known 4] [--labels 1 5 20] [--draws 10] [--first 0]
    [--test 40] [--methods osp fixmatch] [--choose osp] [--single] [--save draws.jsonl]

In each draw some classes are known; of every class some images are kept aside for testing. The labelled images are
drawn from the rest of the known classes; what remains of all classes is the pile. Means over the draws, ± their
standard deviation; then differences within draws, with a paired t-test. `--methods` train on from the instant answer;
`--choose` names those of them that are cross-validated too, as `osp fit --method` does, and the better of both kept:
six trainings instead of one. `--single` makes do with one stored draw of each view, for half of the time. Features are
computed once, for all views that the methods need, and come from the cache afterwards. Seconds are those of the
processor. With `--save` each draw is noted in a file and not made again: several processes can share the work, and the
last one prints the whole table; draws of another folder or with other words are not taken. What is chosen by looking at
draws belongs on other draws than what is reported: `--first 100`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel  # type: ignore[import-untyped]

from osp.data.folders import list_images
from osp.evaluate.metrics import detection, expected_calibration_error
from osp.models.instant import Instant
from osp.nets.pretrained import efficientnet_lite0
from osp.photos.features import compute
from osp.photos.fit import ALONE, better
from osp.photos.instant import fit_instant
from osp.photos.learning import Ground, improve, learn, views_for

Figures = dict[str, float]


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


def one(
    stored: dict[str, np.ndarray],
    classes: np.ndarray,
    given: argparse.Namespace,
    labels: int,
    seed: int,
) -> Figures:
    """All figures of one draw, in percent."""
    labeled, pile, kept_aside, chosen = draw(classes, given.known, labels, given.test, seed)
    features = stored["plain"]
    targets = np.searchsorted(chosen, classes[labeled])
    belongs, pile_belongs = np.isin(classes[kept_aside], chosen), np.isin(classes[pile], chosen)
    truth = np.searchsorted(chosen, classes[kept_aside][belongs])
    test, known_test = features[kept_aside], features[kept_aside][belongs]

    def accuracy(answer: Instant) -> float:
        return float((answer.predict_proba(known_test).argmax(axis=1) == truth).mean() * 100)

    figures = baseline(features, labeled, targets, kept_aside, belongs, truth)
    begin = time.process_time()
    instant = fit_instant(features[labeled], targets, features[pile], [str(c) for c in chosen])
    seconds = time.process_time() - begin
    alone = fit_instant(features[labeled], targets, features[pile][:0], [str(c) for c in chosen])
    kept_alone = better(alone, instant) == ALONE
    scores, pile_scores = instant.ood_score(test), instant.ood_score(features[pile])
    probabilities, estimate, threshold = instant.predict_proba(known_test), instant.estimate, instant.threshold()
    at_95 = float(np.quantile(scores[belongs], 0.95))
    figures |= {
        "instant accuracy": accuracy(instant),
        "labels alone, accuracy": accuracy(alone),
        "the better of both by cross-validation, accuracy": accuracy(alone if kept_alone else instant),
        "labels alone kept (of 100 draws)": 100.0 * kept_alone,
        "instant accuracy by cross-validation": estimate.accuracy if estimate else np.nan,
        "instant AUROC": detection(scores[belongs], scores[~belongs])["auroc"] or 0.0,
        "instant AUROC in the pile": detection(pile_scores[pile_belongs], pile_scores[~pile_belongs])["auroc"] or 0.0,
        "instant ECE": expected_calibration_error(np.log(probabilities), truth) or 0.0,
        "known accepted": float((scores[belongs] <= threshold).mean() * 100),
        "foreign accepted": float((scores[~belongs] <= threshold).mean() * 100),
        "foreign accepted by the cut that accepts 95 % of the known test photos": float(
            (scores[~belongs] <= at_95).mean() * 100
        ),
        "share of the pile, estimated": instant.share(pile_scores) * 100,
        "share of the pile, true": float(pile_belongs.mean() * 100),
        "instant seconds": seconds,
    }
    rows = {view: np.concatenate([each[labeled], each[pile]]) for view, each in stored.items()}
    for method in given.methods:
        begin = time.process_time()
        if method in given.choose and labels > 1:
            learned, kept = improve(instant, rows, targets, method)
            assert learned is not None
            figures[f"the better of instant and {method} by cross-validation, accuracy"] = accuracy(kept)
            figures[f"{method} kept (of 100 draws)"] = 100.0 * (kept is learned)
        else:
            learned = learn(instant, Ground.of(instant, rows, targets), method)
        figures[f"{method} accuracy"] = accuracy(learned)
        figures[f"{method} seconds"] = time.process_time() - begin
    return figures


def baseline(
    features: np.ndarray,
    labeled: np.ndarray,
    targets: np.ndarray,
    kept_aside: np.ndarray,
    belongs: np.ndarray,
    truth: np.ndarray,
) -> Figures:
    """What twenty lines of scikit-learn reach on the same features."""
    from sklearn.linear_model import LogisticRegression

    raw = features.astype(np.float32)
    begin = time.process_time()
    plain = LogisticRegression(max_iter=1000).fit(raw[labeled], targets)
    seconds = time.process_time() - begin
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    scores = 1 - (unit[kept_aside] @ unit[labeled].T).max(axis=1)
    return {
        "LR accuracy": float((plain.predict(raw[kept_aside][belongs]) == truth).mean() * 100),
        "LR + nearest label AUROC": detection(scores[belongs], scores[~belongs])["auroc"] or 0.0,
        "LR seconds": seconds,
    }


def experiment(given: argparse.Namespace) -> dict[str, Any]:
    """All that the figures of a draw depend on, but its labels and seed."""
    asked = {key: getattr(given, key) for key in ("known", "test", "methods", "choose", "single")}
    return {"folder": given.folder.resolve().name, **asked}


def noted(path: Path | None, asked: Mapping[str, Any]) -> dict[tuple[int, int], Figures]:
    """The draws of this experiment that a file holds; lines of others, or that do not say which, are passed over."""
    if path is None or not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {(line[0], line[1]): line[2] for line in lines if line[3:] == [asked]}


def print_table(table: dict[str, dict[int, list[float]]], labels: list[int]) -> None:
    print(f"\n| labels per class | {' | '.join(map(str, labels))} |\n|---|" + "---|" * len(labels))
    for name, columns in table.items():
        cells = [f"{np.mean(columns[n]):.1f} ± {np.std(columns[n]):.1f}" if columns[n] else "" for n in labels]
        print(f"| {name} | {' | '.join(cells)} |")


def print_differences(table: dict[str, dict[int, list[float]]], labels: list[int], methods: list[str]) -> None:
    """Mean difference within draws, better : equal : worse, and p of the paired t-test."""
    pairs = [("instant accuracy", "LR accuracy"), ("instant AUROC", "LR + nearest label AUROC")]
    pairs += [
        ("instant accuracy", "labels alone, accuracy"),
        ("the better of both by cross-validation, accuracy", "instant accuracy"),
    ]
    for method in methods:
        kept = f"the better of instant and {method} by cross-validation, accuracy"
        pairs += [(f"{method} accuracy", "instant accuracy"), (kept, "instant accuracy"), (kept, "LR accuracy")]
    print(f"\n| difference | {' | '.join(map(str, labels))} |\n|---|" + "---|" * len(labels))
    for one_name, other in pairs:
        cells = []
        for n in labels:
            first, second = np.array(table[one_name][n]), np.array(table[other][n])
            if not len(first):
                cells.append("")
                continue
            gain = first - second
            p = float(ttest_rel(first, second).pvalue) if gain.any() else 1.0
            counts = f"{(gain > 0).sum()}:{(gain == 0).sum()}:{(gain < 0).sum()}"
            cells.append(f"{gain.mean():+.1f} ({counts}, p = {p:.2g})")
        if any(cells):
            print(f"| {one_name} - {other} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--known", type=int, default=4)
    parser.add_argument("--labels", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--methods", nargs="*", default=["osp", "fixmatch"])
    parser.add_argument("--choose", nargs="*", default=["osp"])
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    files = [file.path for file in list_images(given.folder, deep=True)]
    views = {"plain", *(view for method in given.methods for view in views_for(method, given.known))}
    views -= {"weak2", "strong2"} if given.single else set()
    found = compute(files, efficientnet_lite0(), sorted(views))
    names = [Path(file).relative_to(given.folder.absolute()).parts[0] for file in found.files]
    classes = np.unique(names, return_inverse=True)[1]
    stored = {view: found.rows(view=view) for view in views}
    table: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    asked = experiment(given)
    known = noted(given.save, asked)
    for labels in given.labels:
        for seed in range(given.first, given.first + given.draws):
            figures = known.get((labels, seed)) or one(stored, classes, given, labels, seed)
            if given.save is not None and (labels, seed) not in known:
                with open(given.save, "a") as file:
                    file.write(json.dumps([labels, seed, figures, asked]) + "\n")
            for name, value in figures.items():
                table[name][labels].append(value)
    print_table(table, given.labels)
    print_differences(table, given.labels, given.methods)


if __name__ == "__main__":
    main()
