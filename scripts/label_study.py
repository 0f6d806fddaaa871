"""How many answers does `osp label` need? A simulated person who answers truly, against labeling at random.

python scripts/label_study.py FOLDER --known 4 [--start 0 5] [--draws 5] [--first 0] [--save curves.jsonl]
python scripts/label_study.py FOLDER --known 4 --first 0 --draws 3 --run 20 50 100 200
python scripts/label_study.py tiny-imagenet-200/train --classes 30 --photos 50 --known 15
python scripts/label_study.py --draw docs/images/label.png curves.jsonl
python scripts/label_study.py --time 1000 20000

FOLDER has one folder per class, of which the first `--classes` are taken, and of each the first `--photos`; features
are those of `osp fit`. In each draw some classes are known, the others unknown. An answer is one key, click or untick:
wrong photos of a group are unticked one by one, a group less than half pure is refused. `rest`: known photos in their
class and unknown ones rejected, in percent of those without a label; `all`: the same over the whole pile, labeled
photos counted as right. Random: one photo per answer, the same guess.

`--run` writes the run after so many answers and prints, beside the share of the rest that the page's guess has right:
that of the run, of how many photos both say the same, which share of the known photos and of the unknown ones the run
lets in, and how many strangers it says are among those that it lets in, and how many there are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from osp.data.folders import list_classes
from osp.models.photo import open_backbone
from osp.photos.asking import NONE, OPEN, Guess, Layout, guess, lay_out, next_question
from osp.photos.features import compute
from osp.photos.fit import better_of
from osp.photos.instant import fit_instant

AT = (10, 20, 50, 100, 200)
Curve = list[tuple[int, float, float]]


def guess_of(layout: Layout, labels: np.ndarray) -> Guess:
    """Classes without a label are not there yet."""
    names = np.unique(labels[labels >= 0])
    dense = labels.copy()
    dense[labels >= 0] = np.searchsorted(names, labels[labels >= 0])
    found = guess(layout, dense, len(names))
    return replace(found, classes=names[found.classes]) if len(names) else found


def shares(labels: np.ndarray, found: Guess, truth: np.ndarray) -> tuple[float, float]:
    right = np.where(found.inside, found.classes, NONE) == truth
    rest = labels == OPEN
    return 100 * float(right[rest].mean()) if rest.any() else 100.0, 100 * float((right | ~rest).mean())


def answered(
    layout: Layout, truth: np.ndarray, labels: np.ndarray, most: int
) -> Iterator[tuple[int, np.ndarray, Guess]]:
    """Answers the questions of `osp label`: after each the number of answers so far, the labels and the guess."""
    found, shown, answers = guess_of(layout, labels), set[int](), 0
    yield 0, labels, found
    while answers < most and (question := next_question(layout, found, labels, shown)) is not None:
        values, counts = np.unique(truth[question.rows], return_counts=True)
        answers += 1
        labels = labels.copy()
        if 2 * counts.max() >= len(question.rows):
            same = question.rows[truth[question.rows] == values[counts.argmax()]]
            answers += len(question.rows) - len(same)
            labels[same] = truth[same]
        shown.update(question.rows.tolist())
        found = guess_of(layout, labels)
        yield answers, labels, found


def person(layout: Layout, truth: np.ndarray, labels: np.ndarray, most: int) -> Curve:
    return [(n, *shares(now, found, truth)) for n, now, found in answered(layout, truth, labels, most)]


def written(features: np.ndarray, labels: np.ndarray, found: Guess, truth: np.ndarray) -> list[float]:
    """The columns of `--run`."""
    names, has, rest, none = np.unique(labels[labels >= 0]), labels >= 0, labels == OPEN, labels == NONE
    given = (features[has], np.searchsorted(names, labels[has]))
    classes = [str(name) for name in names]
    both = fit_instant(*given, features[rest], classes, none=features[none], asked_person=True)
    run = better_of(fit_instant(*given, features[:0], classes, asked_person=True), both)
    chances, scores = run.answer(features[rest])
    inside, known = scores <= run.threshold(), truth[rest] >= 0
    said = np.where(inside, names[chances.argmax(axis=1)], NONE)
    page = np.where(found.inside, found.classes, NONE)[rest]
    strangers = np.nan if run.belonging is None else float((1 - run.belonging.chance(scores[inside])).sum())
    shares = [100 * float(each.mean()) for each in (page == truth[rest], said == truth[rest], page == said)]
    return [*shares, 100 * inside[known].mean(), 100 * inside[~known].mean(), strangers, (inside & ~known).sum()]


def features_of(given: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """n×D features and true classes of the photos that can be read."""
    folders = list(list_classes(given.set)[0].values())[: given.classes]
    files = [(file.path, number) for number, each in enumerate(folders) for file in each.files[: given.photos]]
    found = compute([path for path, _ in files], open_backbone("lite0"))
    return found.rows(), np.array([number for _, number in files])[found.kept]


def runs(given: argparse.Namespace) -> None:
    features, classes = features_of(given)
    layout, rows = lay_out(features), dict[tuple[int, int], list[list[float]]]()
    for start in given.start:
        for seed in range(given.first, given.first + given.draws):
            truth, labels, _ = drawn(classes, given.known, start, seed)
            steps = list(answered(layout, truth, labels, max(given.run)))
            for most in given.run:
                _, now, found = [step for step in steps if step[0] <= most][-1]
                if len(np.unique(now[now >= 0])) > 1:
                    rows.setdefault((start, most), []).append(written(features, now, found, truth))
    heads = ("labels before", "answers", "page", "run", "agree", "known in", "unknown in", "strangers said", "are")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for (start, most), found_ones in rows.items():
        print(f"| {start} | {most} | {' | '.join(f'{mean:.1f}' for mean in np.mean(found_ones, axis=0))} |")
    errors = np.concatenate([np.array(each)[:, 5] - np.array(each)[:, 6] for each in rows.values()])
    print(f"strangers: wrong by {np.nanmean(np.abs(errors)):.1f} in the mean")


def drawn(classes: np.ndarray, known: int, start: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """The truth, labels to start from, and what draws on."""
    draws = np.random.default_rng(seed)
    chosen = np.sort(draws.permutation(classes.max() + 1)[:known])
    truth = np.where(np.isin(classes, chosen), np.searchsorted(chosen, classes), NONE)
    labels = np.full(len(truth), OPEN)
    for number in range(known):
        labels[draws.permutation(np.flatnonzero(truth == number))[:start]] = number
    return truth, labels, draws


def at_random(layout: Layout, truth: np.ndarray, labels: np.ndarray, most: int, draws: np.random.Generator) -> Curve:
    curve = [(0, *shares(labels, guess_of(layout, labels), truth))]
    order = [row for row in draws.permutation(len(truth)) if labels[row] == OPEN]
    for answers, row in enumerate(order[:most], 1):
        labels[row] = truth[row]
        if answers % 5 == 0:
            curve.append((answers, *shares(labels, guess_of(layout, labels), truth)))
    return curve


def value(curve: Curve, answers: int, column: int) -> float:
    return [each for each in curve if each[0] <= answers][-1][column]


def study(given: argparse.Namespace) -> None:
    features, classes = features_of(given)
    layout = lay_out(features)
    for start in given.start:
        for seed in range(given.first, given.first + given.draws):
            truth, labels, draws = drawn(classes, given.known, start, seed)
            asked = person(layout, truth, labels.copy(), given.answers)
            random = at_random(layout, truth, labels.copy(), given.answers, draws)
            line = {"set": given.set.name, "start": start, "seed": seed, "label": asked, "random": random}
            with open(given.save, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    print_table(given.save)


def read(path: Path) -> dict[tuple[str, int], list[dict[str, Curve]]]:
    found: dict[tuple[str, int], list[dict[str, Curve]]] = {}
    for line in map(json.loads, path.read_text("utf-8").splitlines()):
        found.setdefault((line["set"], line["start"]), []).append(line)
    return found


def print_table(path: Path) -> None:
    print(f"| set, labels per class before | | {' | '.join(f'{n} answers' for n in AT)} |\n|---|---|{'---|' * len(AT)}")
    for (name, start), draws in read(path).items():
        for column, part in ((1, "rest"), (2, "all")):
            for how in ("label", "random"):
                means = [np.mean([value(draw[how], n, column) for draw in draws]) for n in AT]
                cells = " | ".join(f"{mean:.1f}" for mean in means)
                print(f"| {name}, {start} | {'osp label' if how == 'label' else 'at random'}, {part} | {cells} |")


def draw(picture: Path, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = read(path)
    figure, axes = plt.subplots(1, len(found), figsize=(3.1 * len(found), 3.2), sharey=True, squeeze=False)
    for axis, ((name, start), draws) in zip(axes[0], found.items(), strict=True):
        steps = range(0, max(AT) + 1, 5)
        for how, color, text in (("label", "#1f6391", "osp label"), ("random", "#a8480b", "one by one, at random")):
            for column, line in ((1, "-"), (2, ":")):
                means = [np.mean([value(each[how], n, column) for each in draws]) for n in steps]
                axis.plot(steps, means, line, color=color, label=text if column == 1 else None)
        axis.set_title(f"{name}, {'from nothing' if not start else f'{start} labels per class'}", fontsize=10)
        axis.set_xlabel("answers")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("right, %")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def times(sizes: list[int]) -> None:
    """Seconds of the processor for one refit, and for laying the photos out, on random features of ten kinds."""
    for size in sizes:
        draws = np.random.default_rng(0)
        kinds = draws.integers(0, 10, size)
        features = (draws.normal(size=(10, 1280))[kinds] + draws.normal(size=(size, 1280))).astype(np.float16)
        begin = time.process_time()
        layout = lay_out(features)
        laid = time.process_time() - begin
        labels = np.full(size, OPEN)
        labels[:300] = np.where(kinds[:300] < 6, kinds[:300], NONE)
        spent = []
        for _ in range(5):
            begin = time.process_time()
            found = guess(layout, labels, 6)
            next_question(layout, found, labels, ())
            spent.append(time.process_time() - begin)
        print(f"{size:,} photos: laid out in {laid:.1f} s, an answer in {np.median(spent):.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, nargs="?")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--photos", type=int)
    parser.add_argument("--known", type=int, default=4)
    parser.add_argument("--start", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--save", type=Path, default=Path("curves.jsonl"))
    parser.add_argument("--run", type=int, nargs="+")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--time", type=int, nargs="+")
    given = parser.parse_args()
    if given.time:
        times(given.time)
    elif given.draw is not None:
        draw(given.draw, given.set)
    elif given.run:
        runs(given)
    else:
        study(given)


if __name__ == "__main__":
    main()
