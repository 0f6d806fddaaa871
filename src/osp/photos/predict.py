"""Predictions for image files by the model of any run folder: one that `osp.fit` made, or `osp.train`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.decode_pool import decode_all
from osp.data.folders import walk
from osp.data.source import Progress
from osp.errors import UserError, user_path
from osp.evaluate.metrics import softmax
from osp.evaluate.predictions import Group, Predictions
from osp.photos.decisions import Decision, decide
from osp.photos.doubts import next_to_label
from osp.photos.estimates import fit_temperature, tested, weighted_quantile
from osp.photos.features import Rows, compute
from osp.photos.folder import LABELS, RESULT, labels_of, result_of
from osp.photos.model import FACTS, PhotoModel, Prediction, load_model
from osp.photos.reading import Listed
from osp.predictor import Predictor, load
from osp.recipe import Plan
from osp.runs.folder import RunFolder

MARKS = "*?["


def image_files(given: Iterable[str], listed: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Files as named, all images of folders, and what patterns match; `-` stands for the names in `listed`.

    A file that is not there stays in the list: its row will say so. Each file is there once. Beside them sentences on
    what was passed over in folders.
    """
    files: list[str] = []
    notes: list[str] = []
    for each in given:
        names = [line for line in (name.rstrip("\r\n") for name in listed) if line] if each == "-" else [each]
        for name in names:
            path = str(user_path(name))
            matches = not os.path.lexists(path) and any(mark in path for mark in MARKS)
            for each_path in _matches(path) if matches else [path]:
                if not os.path.isdir(each_path):
                    files.append(each_path)
                    continue
                found = walk(each_path)
                files += [file.path for file in found.files]
                notes += found.notes(each_path)
    if not files:
        said = "".join(f" {note}" for note in notes)
        raise UserError(f"There is no image to look at. Name files, folders, patterns, or - for a list of names.{said}")
    return list(dict.fromkeys(files)), list(dict.fromkeys(notes))


def _matches(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise UserError(f"Nothing matches {pattern!r}.")
    return found


@dataclass(frozen=True)
class TrainedModel:
    """The model of an `osp.train` run, with probabilities calibrated on its validation images."""

    predictor: Predictor
    temperature: float
    known_scores: np.ndarray
    """OOD scores of images known to belong; empty where the run left none."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.predictor.class_names

    def threshold(self, accept: float) -> float:
        """The OOD score up to which an image is taken for one of the classes."""
        if not 0 < accept < 1:
            raise UserError(f"accept={accept}: a share between 0 and 1, such as 0.95.")
        if not len(self.known_scores):
            return self.predictor.threshold
        return weighted_quantile(self.known_scores, np.ones(len(self.known_scores)), accept)

    def predict(
        self, files: Sequence[str | Path], accept: float = 0.95, progress: Progress | None = None
    ) -> Iterator[Prediction]:
        """One prediction per file, in order, a batch at a time; a file that cannot be read does not stop the rest."""
        paths = [str(file) for file in files]
        limit, side = self.threshold(accept), self.predictor.shape[1]
        done = 0
        for images, skipped in decode_all(paths, side):
            reasons = dict(skipped)
            span = range(done, done + len(images) + len(skipped))
            done = span.stop
            readable = [position for position in span if position not in reasons]
            said = self.predictor(images.transpose(0, 2, 3, 1)) if readable else None
            row = 0
            for position in span:
                if said is None or position in reasons:
                    yield Prediction(paths[position], None, reason=reasons[position])
                    continue
                chances = softmax(np.log(np.maximum(said.probabilities[row], 1e-30)) / self.temperature)
                best, score = int(chances.argmax()), float(said.ood_score[row])
                decision = Decision(
                    paths[position], self.class_names[best], float(chances[best]), score, score <= limit
                )
                yield Prediction(paths[position], decision, tuple(map(float, chances)))
                row += 1
            if progress:
                progress(done, len(paths), "Predicting")


AnyModel = PhotoModel | TrainedModel


def open_run(run: str | Path) -> AnyModel:
    """The model of a run folder of either kind."""
    folder = user_path(run)
    if not folder.exists():
        raise UserError(f"The run folder {folder} is not there.")
    if (folder / FACTS).exists():
        return load_model(folder)
    return open_trained(folder)


def open_trained(folder: Path) -> TrainedModel:
    """The model of a run of `osp.train`."""
    paths = RunFolder(folder)
    if folder.is_dir() and not any(path.exists() for path in (paths.plan, paths.recipe, paths.model)):
        raise UserError(f"{folder} is no run folder: it holds neither a fit ({FACTS}) nor a trained model.")
    predictor = load(folder)
    if not paths.predictions.exists():
        return TrainedModel(predictor, 1.0, np.empty(0))
    predictions = Predictions.load(paths.predictions)
    known = _known(predictions)
    if known is None or known.targets is None:
        return TrainedModel(predictor, 1.0, np.empty(0))
    temperature = fit_temperature(known.logits.astype(np.float64), known.targets, np.ones(len(known)))
    return TrainedModel(predictor, temperature, known.scores.get(predictor.score, np.empty(0)))


def _known(predictions: Predictions) -> Group | None:
    """Images known to belong that were not learned from."""
    group = predictions.groups.get("validation")
    return group if group is not None and len(group) else None


def decisions(
    model: AnyModel, run: Path, files: Sequence[str], accept: float, progress: Progress | None
) -> tuple[list[Prediction], int]:
    """Predictions of a pile, and how many of its photos are left out because they have a label.

    Those are known by their place and, of a fit, by their content, too. Features that a fit has computed come from the
    cache.
    """
    labels = labels_of(run) if (run / LABELS).exists() else []
    unlabeled = _elsewhere(files, [label.file for label in labels], _class_folders(model, run))
    if isinstance(model, TrainedModel):
        return list(model.predict(unlabeled, accept, progress)), len(files) - len(unlabeled)
    features = compute(unlabeled, model.backbone, progress=progress)
    known = {label.content for label in labels}
    found = [
        Prediction(file, Decision(file, *each))
        for file, key, each in zip(features.files, features.keys, decide(model.instant, features, accept), strict=True)
        if key not in known
    ]
    found += [Prediction(file, None, reason=reason) for file, reason in features.unreadable]
    return found, len(files) - len(found)


def _class_folders(model: AnyModel, run: Path) -> list[str]:
    """The folders of sorted photos that a run was given, one per class: not all that lies in them has taught it."""
    root, plan = None, RunFolder(run).plan
    if (run / RESULT).exists() and isinstance(model, PhotoModel):
        root = result_of(run).get("sorted")
    elif plan.exists() and (made := Plan.read(plan)).data == "folder":
        root = made.data_dir
    return [os.path.join(root, name) for name in model.class_names] if isinstance(root, str) else []


def _elsewhere(files: Sequence[str], taken: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Those of the files that are none of the taken ones and lie in none of the folders, links followed."""
    others = {os.path.realpath(file) for file in taken}
    inside = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)
    real = ((file, os.path.realpath(file)) for file in files)
    return [file for file, place in real if place not in others and not place.startswith(inside)]


def figures_on(
    model: TrainedModel, listed: Listed, classes: Sequence[str], progress: Progress | None = None
) -> dict[str, Any]:
    """How good a model is on photos kept aside, whose labels count in `classes`; unreadable ones are left out."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = [
        (numbers.get(each.decision.label, len(numbers)), label, each.decision.ood_score)
        for each, label in zip(model.predict(listed.files, progress=progress), listed.labels, strict=True)
        if each.decision is not None
    ]
    if not any(label >= 0 for _, label, _ in found):
        raise UserError("No test photo of a known class can be read.")
    predicted, truth, scores = map(np.array, zip(*found, strict=True))
    return tested(predicted, truth, scores, model.threshold(0.95))


def worth_labeling(
    model: AnyModel, run: Path, files: Sequence[str], count: int, accept: float, progress: Progress | None
) -> list[tuple[str, str]]:
    """(file, reason) of the photos of a pile most worth labelling, those that have a label left out."""
    if isinstance(model, TrainedModel):
        raise UserError(f"--next needs a run of osp fit; {run} was trained by osp train.")
    features = compute(files, model.backbone, progress=progress)
    known = {label.content for label in labels_of(run)}
    open_ones = [i for i, key in enumerate(features.keys) if key not in known]
    chosen = next_to_label(model.instant, Rows(features, np.array(open_ones, np.int64)), count, accept)
    return [(features.files[open_ones[each.position]], each.reason) for each in chosen]
