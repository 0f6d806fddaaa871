"""The view of a run of `osp train`, from its folder alone; only pictures need torch and the images."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from osp.errors import UserError, printable
from osp.evaluate.metrics import confusion_matrix, softmax, wilson_interval
from osp.evaluate.predictions import NONE, UNSAID, Judged
from osp.files import read_plain
from osp.recipe import Recipe
from osp.recipe.code import asked, files_in
from osp.recipe.reading import LARGEST
from osp.report.album import NO_PREDICTIONS, DataAlbum, Place, plain
from osp.report.curves import curves
from osp.report.embedding import feature_map
from osp.report.galleries import MOST, NEIGHBORS, by_score, doubtful, mistakes, shots, surest
from osp.report.html import drawn
from osp.report.view import Gallery, Histogram, Looked, Map, Point, Shot, View, percent, shown

NUMBERS = {
    "accuracy": ("test accuracy", "%"),
    "open_accuracy": ("balanced accuracy with “none of them” as a class", "%"),
    "auroc": ("AUROC, ID against OOD test images", ""),
    "fpr95": ("OOD accepted where 95 % of ID are", "%"),
    "pool_auroc": ("AUROC in the unlabeled pool", ""),
    "purity": ("ID among the pool images it keeps", "%"),
    "recall": ("ID pool images that it keeps", "%"),
    "val_accuracy": ("validation accuracy", "%"),
    "calibration_error": ("calibration error", "%"),
    "angle": ("angle between ID and OOD features", "°"),
    "steps": ("steps", ""),
    "images_seen": ("images seen", ""),
    "seconds": ("seconds", ""),
}


class TrainedView(View):
    """A run of `osp train`."""

    template = "report"

    @cached_property
    def album(self) -> DataAlbum:
        return DataAlbum(self.run)

    @property
    def names(self) -> tuple[str, ...]:
        return self.run.class_names

    @property
    def threshold(self) -> float | None:
        return None if self.run.predictions is None else self.run.predictions.threshold

    @cached_property
    def pool(self) -> Judged:
        assert self.run.predictions is not None
        pool, truth = self.run.predictions.pool, self.run.truth
        scores = pool.scores[self.run.predictions.score]
        where = [Place(False, int(row)) for row in pool.ids]
        known = np.full(len(pool), UNSAID) if truth is None else np.where(truth, NONE, UNSAID)
        return Judged(where, pool.predicted, pool.confidence, scores, scores > self.threshold, known)

    @cached_property
    def test(self) -> Judged:
        assert self.run.predictions is not None
        groups = [self.run.predictions.groups[name] for name in ("test", "test_ood")]
        scores = np.concatenate([group.scores[self.run.predictions.score] for group in groups])
        truth = [np.full(len(group), NONE) if group.targets is None else group.targets for group in groups]
        return Judged(
            [Place(True, int(row)) for group in groups for row in group.ids],
            np.concatenate([group.predicted for group in groups]),
            np.concatenate([softmax(group.logits).max(axis=1, initial=0) for group in groups]),
            scores,
            scores > self.threshold,
            np.concatenate(truth),
        )

    # Words

    @property
    def title(self) -> str:
        return f"{self.run.method} on {self.run.data_name}"

    def sentences(self) -> list[str]:
        """What was learned from what, how well it names classes, how well it tells what is unknown."""
        return [self._learned(), self._named(), self._unknown()]

    def _learned(self) -> str:
        run, classes = self.run, len(self.names)
        pool, ratio = int(run.number("unlabeled") or 0), run.number("ood_ratio")
        labeled = run.group("labeled")
        total = len(labeled) if labeled is not None else classes * run.plan.labels_per_class
        said = f"{run.method} learned {classes} classes of {run.data_name} from {total:,} labeled images"
        if not pool:
            return f"{said} and no unlabeled ones."
        unknown = "" if ratio is None else f", {100 * ratio:.0f} % of which show none of the classes"
        return f"{said} and {pool:,} unlabeled ones{unknown}."

    def _named(self) -> str:
        accuracy, images = self.run.number("accuracy"), int(self.run.number("test_images") or 0)
        if accuracy is None or not images:
            return "There were no test images to count its mistakes on."
        low, high = wilson_interval(accuracy, images)
        return (
            f"It names the right class for {accuracy:.1f} % of {images:,} test images (95 % interval: {low:.1f} to "
            f"{high:.1f})."
        )

    def _unknown(self) -> str:
        auroc, predictions, ood = self.run.number("auroc"), self.run.predictions, self.run.group("test_ood")
        if predictions is not None and auroc is not None and ood is not None:
            through = 100 * (ood.scores[predictions.score] <= predictions.threshold).mean()
            return (
                f"Unknown images score higher than known ones in {auroc:.1f} % of pairs (AUROC); its threshold lets "
                f"{through:.0f} % of {len(ood):,} unknown test images through."
            )
        if auroc is not None:
            return f"Unknown images score higher than known ones in {auroc:.1f} % of pairs (AUROC)."
        if predictions is not None and len(self.pool):
            called = int(self.pool.outside.sum())
            return f"It calls {called:,} of the {len(self.pool):,} unlabeled images unknown; how many are is not known."
        return "There were no unknown images to test it on."

    def numbers(self) -> dict[str, str]:
        return {name: shown(self.run.number(key), unit) for key, (name, unit) in NUMBERS.items()}

    def more(self, other: View | None, name: str) -> dict[str, Any]:
        kind = "validation" if self.run.group("validation") is not None else "labeled"
        listed = ", ".join(f"{printable(each)} {printable(version)}" for each, version in self.run.versions.items())
        variant = self.run.result.get("data_variant")
        return {
            "warnings": [printable(each) for each in self.run.result.get("warnings") or []],
            "curves": [{"title": each, "drawing": drawn(figure)} for each, figure in curves(self.run.metrics).items()],
            "threshold_note": f"95 % of the {kind} images lie at or below it.",
            "no_predictions": NO_PREDICTIONS,
            "no_map": NO_PREDICTIONS if self.run.predictions is None else "There are too few test images for a map.",
            "has_partners": bool(self.run.bank),
            "recipe": self._recipe(),
            "command": " ".join(["osp train --recipe recipe.yaml --out again", *self._code()]),
            "made_with": f"Seed {self.run.plan.seed}. Versions: {listed}."
            + (f" Data: {printable(variant)}." if variant else ""),
        }

    def _code(self) -> list[str]:
        """How the command names the user's own files: a recipe does not say which code is run."""
        return [printable(asked(key, name)) for key, name in files_in(self.run.plan.model_dump()).items()]

    def _recipe(self) -> str:
        """The recipe as it was written, or the plan's."""
        try:
            text = read_plain(self.run.folder.recipe, LARGEST).decode("utf-8", errors="replace")
        except OSError:  # none, a link, a pipe, or far too long
            text = Recipe(**self.run.plan.recipe).dump()
        return printable(text, lines=True).strip()

    # Figures

    def histograms(self) -> list[Histogram]:
        if self.run.predictions is None:
            return []
        known, pool = self.test.truth != NONE, self.pool.scores
        test = {"ID": self.test.scores[known], "OOD": self.test.scores[~known]}
        truth, score = self.run.truth, printable(self.run.predictions.score)
        kinds = {"unlabeled": pool} if truth is None else {"ID": pool[~truth], "OOD": pool[truth]}
        return [Histogram("Test images", test, score=score), Histogram("Unlabeled images", kinds, score=score)]

    def map(self) -> Map | None:
        found, predictions = feature_map(self.run), self.run.predictions
        if found is None or predictions is None:
            return None
        rows = {"test": self.test, "pool": self.pool}
        first = {"test": 0, "test_ood": len(predictions.groups["test"]), "pool": 0}
        tested = "test" in found.unknown
        points = []
        for number, group, row in zip(found.classes, found.groups, found.rows, strict=True):
            images, i = rows["pool" if group == "pool" else "test"], first[group] + row
            predicted, score = int(images.predicted[i]), images.scores[i]
            truth = self.names[number] if number >= 0 else "unknown" if tested else "unlabeled"
            wrong = predicted != number if number >= 0 else tested and not images.outside[i]
            words = f"{truth}; predicted {self.names[predicted]}; OOD score {score:.3g}"
            points.append(Point(images.where[i], int(number), words, bool(wrong)))
        return Map(found.places, points, found.unknown)

    def confusions(self) -> list[tuple[str, np.ndarray]]:
        stored, test = self.run.result.get("confusion"), self.run.group("test")
        if stored is None and test is not None and test.targets is not None:
            stored = confusion_matrix(test.targets, test.predicted, len(self.names)).tolist()
        return [("", np.array(stored if stored is not None else []))]

    # Images

    def galleries(self, other: View | None, name: str) -> list[Gallery]:
        """By class, by score, mistakes, labels that look wrong; no empty ones."""
        if self.run.predictions is None:
            return []
        unknown = self.pool.truth == NONE
        note = f"Unlabeled images by OOD score; above {self.threshold:.3g} an image counts as unknown."
        found = [
            *self._by_confidence(unknown),
            *by_score(self.pool, self.names, unknown, note),
            mistakes(self.test, self.names, "Mistakes", " test images; the surest mistakes first."),
            *self._doubtful_labels(),
        ]
        return [each for each in found if each.shots]

    def _by_confidence(self, unknown: np.ndarray) -> list[Gallery]:
        each = 6 if len(self.names) <= 12 else 3 if len(self.names) <= 30 else 1

        def caption(row: int) -> str:
            return f"{self.names[self.pool.predicted[row]]} {percent(self.pool.confidence[row])}"

        ends = [surest(self.pool, number, each) for number in range(len(self.names))]
        best, worst = ([row for end in ends for row in end[side]] for side in (0, 1))
        framed = " Dashed frame: known to show none of the classes." if unknown.any() else ""
        sure = f"Unlabeled images that the model is most sure of.{framed}"
        unsure = f"Unlabeled images that it is least sure of.{framed}"
        return [
            Gallery("Surest of each class", shots(self.pool, best, caption, unknown), sure),
            Gallery("Least sure of each class", shots(self.pool, worst, caption, unknown), unsure),
        ]

    def _doubtful_labels(self) -> list[Gallery]:
        """Labeled images whose five nearest others, by the angle of their features, all have another label."""
        groups = [group for name in ("labeled", "validation") if (group := self.run.group(name)) is not None]
        known = [(group, group.targets) for group in groups if group.targets is not None]
        if not known:
            return []
        targets, ids = (np.concatenate(each) for each in ([t for _, t in known], [group.ids for group, _ in known]))
        rows = doubtful(np.concatenate([group.features for group, _ in known]), targets)[:MOST]
        found = [Place(False, int(ids[row])) for row in rows]
        why = f"Labeled images whose {NEIGHBORS} nearest others, by their features, all have another label."
        wrong = [
            Shot(place, int(targets[row]), f"labeled {self.names[targets[row]]}")
            for place, row in zip(found, rows, strict=True)
        ]
        return [Gallery("Labels that look wrong", wrong, why)]

    def looked(self, most: int) -> Looked:
        """The first test image of each of the first classes."""
        data = self.album.data
        if data is None:
            raise UserError(self.album.problem)
        rows, targets = first_of_each(data.split.test, data.split.test_targets, most)
        if not len(rows):
            raise UserError("There are no test images to look at.")
        images = data.test.take(rows).numpy()

        def pixels(model: Any) -> np.ndarray:
            if tuple(model.shape) != images.shape[1:] or tuple(map(printable, model.class_names)) != self.names:
                raise UserError("The other run has other classes or images; compare runs on the same data.")
            return images

        return Looked([plain(image) for image in images], [self.names[number] for number in targets], pixels)


def first_of_each(rows: np.ndarray, targets: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first image of each of the first classes, and its class.

    >>> first_of_each(np.array([7, 8, 9]), np.array([1, 0, 1]), 8)
    (array([8, 7]), array([0, 1]))
    """
    classes, first = np.unique(targets, return_index=True)
    return rows[first[:most]], classes[:most]
