"""`osp.RobustClassifier`: the instant answer behind scikit-learn's verbs."""

from __future__ import annotations

import json
import numbers
import os
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from osp.data.fit import fit_images
from osp.data.folders import list_images
from osp.errors import UserError, user_path
from osp.evaluate.estimates import Estimate
from osp.files import read_json, write_text
from osp.models.instant import Instant
from osp.models.photo import PLAIN, SAVED_AS, PhotoModel, load_model, open_backbone
from osp.nets.pretrained import Backbone
from osp.photos.features import compute
from osp.photos.instant import fit_instant
from osp.photos.photographs import list_sorted

UNLABELED = -1
FACTS = "estimator.json"
FORMAT = 1
CHUNK = 64
"""Images brought to the backbone's size at once, so that memory stays small."""


class InputError(UserError, ValueError):
    """A mistake in what was passed: a sentence for people, and the ValueError that scikit-learn's tools expect."""


class RobustClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier from few labels and many unlabeled images, some of which belong to none of the classes.

    Images are uint8 arrays N×H×W (grey) or N×H×W×C, lists of arrays, Pillow images or paths, or a folder (all images
    in it and below, sorted by path). They are looked at through a frozen pretrained network. A plain N×D array of
    numbers is used as features. Either way `osp.photos.instant` is fitted: a linear classifier and a
    nearest-neighbor OOD score on features centered by the mean of labeled and unlabeled images.

    Parameters
    ----------
    backbone : "lite0" (EfficientNet-Lite0), "hf:NAME_OR_FOLDER" (extra `hf`), or an `osp.nets.pretrained.Backbone`.
        Unused for plain features.
    accept : share of the images of known classes that `is_ood` lets pass, between 0 and 1.
    random_state : seed of the folds of cross-validation, and of what is kept of a large pool.

    Attributes
    ----------
    classes_ : class labels, sorted.
    instant_ : what was fitted (`osp.photos.instant.Instant`).
    estimate_ : cross-validated accuracy with its interval, calibration error; None where every class has one image.
    threshold_ : the OOD score above which `is_ood` says yes.
    n_features_in_, feature_names_in_ : of plain features; absent for images.

    What cannot be used raises a UserError that is also a ValueError; asking before `fit`, scikit-learn's
    NotFittedError.

    >>> X = np.array([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1], [0.0, 1.1], [1.1, 0.0]])
    >>> model = RobustClassifier().fit(X, ["up", "up", "right", "right", -1, -1])
    >>> model.predict([[0.0, 2.0]]).tolist(), model.predict_proba([[0.0, 2.0]]).shape
    (['up'], (1, 2))
    >>> bool(model.ood_score([[-1.0, -1.0]]) > model.ood_score([[0.0, 1.0]])), model.is_ood([[-1.0, -1.0]]).tolist()
    (True, [True])
    """

    input_: str
    classes_: np.ndarray
    instant_: Instant
    estimate_: Estimate | None
    threshold_: float

    def __init__(self, backbone: str | Backbone = "lite0", accept: float = 0.95, random_state: Any = 0) -> None:
        self.backbone = backbone
        self.accept = accept
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, X_unlabeled: Any = None) -> Self:
        """Fit on labeled images, those with the label -1 and `X_unlabeled` counting as unlabeled; returns itself.

        Without `y`, X is a folder with one folder per class, whose names are the classes. Raises a UserError that is
        also a ValueError, as scikit-learn has it, where there are fewer than two classes, X and y do not go together,
        or an image cannot be read.
        """
        accept: Any = self.accept
        if not isinstance(accept, numbers.Real) or not 0 < float(accept) < 1:
            raise InputError(f"accept={accept}: a share between 0 and 1, such as 0.95.")
        if y is None and is_path(X):
            X, y = labeled_folder(X)
        if (isinstance(X, list | tuple) and not X) or (isinstance(X, np.ndarray) and X.shape[:1] == (0,)):
            raise InputError("There is nothing to learn from: X is empty.")
        if y is None:
            raise InputError("RobustClassifier requires y to be passed, but the target y is None.")
        for stale in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(stale, None)
        kind = kind_of(X)
        self.input_ = "features" if kind == "features" else "images"
        if kind == "features":
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        else:
            X = files_of(X) if kind == "files" else X
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
            check_consistent_length(X, y)
        unlabeled = is_unlabeled(y)
        check_classification_targets(y[~unlabeled])
        classes, labels = np.unique(y[~unlabeled], return_inverse=True)
        if len(classes) < 2:
            held = f"one class ({classes[0]})" if len(classes) else "no class"
            raise InputError(f"RobustClassifier needs at least two classes; y holds {held}.")
        rows = self._rows(X, kind)
        pile = rows[unlabeled]
        if X_unlabeled is not None:
            others = self._rows(X_unlabeled, self._same_input(X_unlabeled), pile=True)
            pile = np.concatenate([pile, others]) if len(pile) else others
        self.classes_ = classes
        self.instant_ = fit_instant(
            rows[~unlabeled],
            labels,
            pile,
            [str(name) for name in classes],
            int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        self.estimate_ = self.instant_.estimate
        self.threshold_ = self.instant_.threshold(self.accept)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each image, even of an unknown one; `is_ood` says which those are."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities of the classes, N×K in the order of `classes_`."""
        rows = self._answerable(X)
        return self.instant_.predict_proba(rows)

    def ood_score(self, X: Any) -> np.ndarray:
        """How unknown each image looks; larger = more OOD."""
        rows = self._answerable(X)
        return self.instant_.ood_score(rows)

    def is_ood(self, X: Any, accept: float | None = None) -> np.ndarray:
        """Whether each image looks as if it belonged to none of the classes; `accept` moves the threshold."""
        scores = self.ood_score(X)
        return np.asarray(scores > (self.threshold_ if accept is None else self.instant_.threshold(accept)))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on images whose label is not -1. Without `y`, X is a folder with one folder per class."""
        if y is None and is_path(X):
            X, y = labeled_folder(X)
        y = column_or_1d(y)
        known = ~is_unlabeled(y)
        if not known.any():
            raise InputError("There is nothing to score: every label is -1 (unlabeled).")
        right = self.predict(X)[known] == y[known]
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)[known]))

    def save(self, folder: str | Path) -> None:
        """Write the fitted model to a new or empty folder, as data only. For images it is a photo model, too."""
        check_is_fitted(self)
        target = user_path(folder)
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise UserError(f"{target} is in use; save to a new folder.")
        kind = self.classes_.dtype.kind
        facts = {
            "format": FORMAT,
            "input": self.input_,
            "classes": self.classes_.tolist(),
            "dtype": "O" if kind == "O" else self.classes_.dtype.str,
            "accept": float(self.accept),
            "random_state": int(self.random_state) if isinstance(self.random_state, numbers.Integral) else None,
            "n_features_in": getattr(self, "n_features_in_", None),
            "feature_names_in": [str(name) for name in getattr(self, "feature_names_in_", [])] or None,
        }
        try:
            text = json.dumps(facts, indent=1)
        except TypeError as error:
            raise UserError(f"Classes of this kind cannot be saved ({error}); use numbers or text.") from None
        PhotoModel(self.instant_, self._backbone()).save(target)
        write_text(target / FACTS, text)

    @classmethod
    def load(cls, folder: str | Path, backbone: Backbone | None = None) -> Self:
        """Read what `save` wrote; no code of the folder runs. A backbone of your own must be given again."""
        path = user_path(folder)
        try:
            facts = read_json(path / FACTS)
            if facts["format"] != FORMAT:
                raise UserError(f"The estimator in {path} has format {facts['format']}; this version reads {FORMAT}.")
            dtype = np.dtype(str(facts["dtype"]))
            if dtype.kind not in "biufUO" or facts["input"] not in ("features", "images"):
                raise ValueError(f"dtype {dtype}, input {facts['input']}")
            classes = np.array(facts["classes"], dtype=dtype)
            plain = facts["input"] == "features"
            model = load_model(path, PLAIN if plain else backbone)
            name = "lite0" if plain else SAVED_AS.get(model.backbone.name, model.backbone.name)
            made = cls(backbone or name, float(facts["accept"]), facts["random_state"])
            made._named_by_folder = None if backbone else name  # no hub is asked for what a folder names
            made.input_ = facts["input"]
            if classes.shape != (len(model.instant.class_names),):
                raise ValueError(f"{classes.shape} classes")
            made.threshold_ = model.instant.threshold(made.accept)
            if plain:
                made.n_features_in_ = int(facts["n_features_in"])
            if facts["feature_names_in"] is not None:
                made.feature_names_in_ = np.array([str(name) for name in facts["feature_names_in"]], dtype=object)
        except FileNotFoundError:
            raise UserError(f"{path} holds no saved RobustClassifier: {FACTS} is missing.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"The estimator in {path} is damaged: {error}.") from None
        made.classes_, made.instant_, made.estimate_ = classes, model.instant, model.instant.estimate
        return made

    def _answerable(self, X: Any) -> np.ndarray:
        """Features of what a fitted model is asked about."""
        check_is_fitted(self)
        return self._rows(X, self._same_input(X))

    def _same_input(self, X: Any) -> str:
        """The kind of X, which must go with what the model is fitted on."""
        kind = kind_of(X)
        if (kind == "features") != (self.input_ == "features"):
            raise InputError(f"RobustClassifier is fitted on {self.input_}, but these are {kind}.")
        return kind

    def _rows(self, X: Any, kind: str, pile: bool = False) -> np.ndarray:
        if kind == "files":
            return file_features(files_of(X), self._backbone(), skip=pile)
        if kind == "images":
            return image_features(X, self._backbone())
        return np.asarray(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def _backbone(self) -> Backbone:
        if self.input_ == "features":
            return PLAIN
        if isinstance(self.backbone, Backbone):
            return self.backbone
        try:
            return _opened(str(self.backbone), fetch=self.backbone != getattr(self, "_named_by_folder", None))
        except UserError as error:
            raise InputError(str(error)) from None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags


@lru_cache(maxsize=1)
def _opened(name: str, fetch: bool) -> Backbone:
    """Loaded once, and outside the estimator, so that a pickle of it does not carry the network."""
    return open_backbone(name, fetch)


def is_unlabeled(y: np.ndarray) -> np.ndarray:
    """Which labels are -1; among texts also "-1", which is what numpy makes of [\"cat\", -1].

    >>> is_unlabeled(np.array(["cat", -1])).tolist()
    [False, True]
    """
    if y.dtype.kind in "biuf":
        return np.asarray(y == UNLABELED)
    return np.array([str(label) == str(UNLABELED) for label in y], dtype=bool)


def is_path(given: Any) -> bool:
    """Whether this is one path."""
    return isinstance(given, str | os.PathLike)


def kind_of(given: Any) -> str:
    """`images` (pixels), `files` (paths or a folder) or `features` (anything else, for scikit-learn to check)."""
    from PIL import Image

    if is_path(given):
        return "files"
    if isinstance(given, np.ndarray) and given.ndim in (3, 4):
        if given.dtype != np.uint8:
            raise InputError(f"Images must be uint8 (0 to 255); these are {given.dtype}.")
        return "images"
    if getattr(given, "ndim", 1) == 1 and hasattr(given, "__getitem__") and hasattr(given, "__len__") and len(given):
        first = next(iter(given))
        if is_path(first):
            return "files"
        if isinstance(first, Image.Image) or (isinstance(first, np.ndarray) and first.ndim in (2, 3)):
            return "images"
    return "features"


def files_of(given: Any) -> list[str]:
    """The image files that are meant: a list of paths as it is, or all images in a folder and below, sorted by path."""
    if not is_path(given):
        files = [os.fspath(path) for path in given]
        if folder := next((path for path in files if os.path.isdir(path)), None):
            raise InputError(f"{folder} is a folder: pass one folder, or a list of image files.")
        return files
    path = user_path(os.fspath(given))
    if not path.is_dir():
        return [str(path)]
    found = [file.path for file in list_images(path, deep=True)]
    if not found:
        raise InputError(f"The folder {path} holds no image.")
    return found


def labeled_folder(folder: str | os.PathLike[str]) -> tuple[list[str], np.ndarray]:
    """Image files and their classes from a folder that has one folder per class.

    Of a folder that `osp sort` made, what a person has moved or added; what it has put there itself, and what is said
    to be none of the classes, is unlabeled.
    """
    path = user_path(os.fspath(folder))
    try:
        listed, names = list_sorted(path, least=0)
    except UserError as error:
        raise InputError(str(error)) from None
    others = [*listed.guesses, *listed.nones]
    files, labels = [*listed.files, *others], [*(names[i] for i in listed.labels), *[str(UNLABELED)] * len(others)]
    if not listed.files:
        raise InputError(f"The folder {path} holds no folders with images: put each class into one of its own.")
    return files, np.array(labels)


def image_features(given: Any, backbone: Backbone) -> np.ndarray:
    """float32 features of images in memory, in order."""
    shape = (3, backbone.size, backbone.size)
    if isinstance(given, np.ndarray) and given.ndim == 3:
        given = given[..., None]  # always grey here: N×H×3 is not one photograph
    rows = np.empty((len(given), backbone.feature_dim), np.float32)
    for start in range(0, len(given), CHUNK):
        part = given[start : start + CHUNK]
        try:
            pixels = fit_images(part if isinstance(part, np.ndarray) and part.ndim == 4 else list(part), shape)
        except UserError as error:
            raise InputError(f"Images {start} to {start + len(part) - 1}: {error}") from None
        rows[start : start + CHUNK] = backbone.features(pixels).numpy()
    return rows


def file_features(files: Sequence[str], backbone: Backbone, skip: bool = False) -> np.ndarray:
    """Features of image files, in order, computed once and kept in the cache; `skip` warns of unreadable ones."""
    found = compute(files, backbone)
    if found.unreadable:
        (first, reason), count = found.unreadable[0], len(found.unreadable)
        told = f"{count} of {len(files)} images cannot be read; the first is {Path(first)}: {reason}."
        if not skip:
            raise InputError(f"{told} Leave them out.")
        warnings.warn(f"{told} They are left out.", stacklevel=4)
    return found.rows()
