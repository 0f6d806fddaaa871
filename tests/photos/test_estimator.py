"""RobustClassifier keeps scikit-learn's promises, and answers for images as for features."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import osp
from helpers.small_backbone import small_backbone
from osp.errors import UserError
from osp.models.photo import load_model
from osp.photos.estimator import FACTS, RobustClassifier

COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200), "green": (40, 200, 40)}

EXCEPTIONS = {
    "check_classifiers_classes": "it takes -1 for a class of two; here, as in sklearn.semi_supervised, -1 is unlabelled"
}


@parametrize_with_checks([RobustClassifier()], expected_failed_checks=lambda _: EXCEPTIONS)  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks_pass(estimator: RobustClassifier, check: Callable[[RobustClassifier], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("labels", [["one", "two", "three"], [0, 1, 2], [0.0, 1.0, 5.0]])
def test_classes_of_any_kind_come_back(labels: list[Any]) -> None:
    """What the excepted check asks for, without -1."""
    rows, numbers = points(0)
    given = np.array(labels)[numbers]
    for y in (given, given.astype(object)) if given.dtype.kind == "U" else (given,):
        model = RobustClassifier().fit(rows, y)
        assert sorted(model.classes_) == sorted(labels)
        assert np.mean(model.predict(rows) == y) > 0.95


def points(seed: int, count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds in eight dimensions."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    return 4 * np.eye(8)[labels] + generator.normal(size=(count, 8)) * 0.7, labels


def photos(colors: list[str], seed: int, size: int = 32) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(colors), size, size, 3)) * 25
    plain = np.array([COLORS[color] for color in colors])[:, None, None]
    return np.asarray(np.clip(plain + noise, 0, 255).astype(np.uint8))


def of_images(**options: Any) -> RobustClassifier:
    return RobustClassifier(backbone=small_backbone(), **options)


LABELED = ["red", "blue"] * 6
POOL = ["red", "blue", "green"] * 10


def test_unlabelled_by_minus_one_and_as_a_third_argument_is_the_same() -> None:
    rows, labels = points(1)
    pool = points(2, 60)[0]
    apart = RobustClassifier().fit(rows, labels, pool)
    marked = RobustClassifier().fit(np.concatenate([rows, pool]), np.concatenate([labels, np.full(60, -1)]))
    both = RobustClassifier().fit(
        np.concatenate([rows, pool[:20]]), np.concatenate([labels, np.full(20, -1)]), pool[20:]
    )
    test = points(3)[0]
    for other in (marked, both):
        assert list(other.classes_) == [0, 1, 2]
        np.testing.assert_allclose(other.predict_proba(test), apart.predict_proba(test), rtol=1e-5)
        np.testing.assert_allclose(other.ood_score(test), apart.ood_score(test), rtol=1e-5)
    named = np.array(["a", "b", "c"])[labels].tolist() + [-1] * 60
    assert list(RobustClassifier().fit(np.concatenate([rows, pool]), named).classes_) == ["a", "b", "c"]


def test_as_good_as_logistic_regression_and_sees_what_is_foreign() -> None:
    rows, labels = points(4)
    test, truth = points(5, 300)
    model = RobustClassifier().fit(rows, labels, points(6, 90)[0])
    assert model.score(test, truth) >= LogisticRegression().fit(rows, labels).score(test, truth) - 0.03
    foreign = 4 * np.eye(8)[[5] * 50] + np.random.default_rng(7).normal(size=(50, 8)) * 0.7
    assert model.is_ood(foreign).mean() > 0.9
    assert model.is_ood(test).mean() < 0.2
    assert np.array_equal(model.is_ood(test), model.ood_score(test) > model.threshold_)
    assert model.is_ood(test, accept=0.5).sum() > model.is_ood(test).sum()


def test_score_leaves_unlabelled_rows_out() -> None:
    rows, labels = points(8)
    model = RobustClassifier().fit(rows, labels)
    hidden = np.where(np.arange(30) < 10, -1, labels)
    assert model.score(rows, hidden) == pytest.approx(np.mean(model.predict(rows[10:]) == labels[10:]))
    with pytest.raises(ValueError, match="every label is -1"):
        model.score(rows, np.full(30, -1))


def test_works_in_pipeline_grid_search_cross_validation_and_clone() -> None:
    rows, labels = points(9, 45)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), RobustClassifier()), {"robustclassifier__accept": [0.9]}, cv=3
    )
    assert search.fit(rows, labels).best_score_ > 0.9
    images, colors = photos(LABELED, 0), np.array(LABELED)
    piped = make_pipeline(FunctionTransformer(), of_images()).fit(images, colors)
    assert list(piped.predict(photos(["blue"], 1))) == ["blue"]
    assert cross_val_score(of_images(), images, colors, cv=2).min() == 1.0
    copy = clone(of_images(accept=0.8))
    assert copy.accept == 0.8
    with pytest.raises(NotFittedError):
        copy.predict(images)


def test_images_come_as_arrays_lists_paths_and_folders(tmp_path: Path) -> None:
    images, pool = photos(LABELED, 0), photos(POOL, 1)
    test = photos(["red", "blue", "green"], 2)
    model = of_images().fit(images, LABELED, pool)
    assert list(model.predict(test)[:2]) == ["red", "blue"]
    assert list(model.is_ood(test)) == [False, False, True]
    assert not hasattr(model, "n_features_in_")
    files: list[str] = []
    for number, (color, image) in enumerate(zip(LABELED, images, strict=True)):
        path = tmp_path / "sorted" / color / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        files.append(str(path))
    (tmp_path / "pile").mkdir()
    for number, image in enumerate(pool):
        Image.fromarray(image).save(tmp_path / "pile" / f"{number:02}.png")
    expected = model.ood_score(test)
    pillow = [Image.fromarray(image) for image in images]
    others = [
        of_images().fit(files, LABELED, str(tmp_path / "pile")),
        of_images().fit(np.array(files), LABELED, tmp_path / "pile"),
        of_images().fit(tmp_path / "sorted", None, tmp_path / "pile"),
        of_images().fit(pillow, LABELED, list(pool)),
    ]
    for other in others:
        np.testing.assert_allclose(other.ood_score(test), expected, atol=3e-3)  # files' features are kept as float16
        assert other.score(tmp_path / "sorted") == 1.0
    assert len(model.predict(tmp_path / "pile")) == 30
    grey = of_images().fit(images[..., 0], LABELED)
    assert list(grey.predict(images[:4, :, :, 0])) == LABELED[:4]


def test_a_saved_estimator_says_the_same_and_an_image_model_is_a_photo_model(tmp_path: Path) -> None:
    rows, labels = points(10)
    plain = RobustClassifier(accept=0.9).fit(rows, labels, points(11)[0])
    plain.save(tmp_path / "plain")
    again = osp.RobustClassifier.load(tmp_path / "plain")
    assert again.get_params() == plain.get_params()
    assert again.n_features_in_ == 8
    assert again.threshold_ == pytest.approx(plain.threshold_)
    assert again.classes_.dtype == plain.classes_.dtype
    for name in ("predict", "predict_proba", "ood_score", "is_ood"):
        assert np.array_equal(getattr(again, name)(rows), getattr(plain, name)(rows))
        assert np.array_equal(getattr(pickle.loads(pickle.dumps(plain)), name)(rows), getattr(plain, name)(rows))
    with pytest.raises(UserError, match="is in use"):
        plain.save(tmp_path / "plain")
    model = of_images().fit(photos(LABELED, 0), LABELED, photos(POOL, 1))
    model.save(tmp_path / "photos")
    test = photos(POOL, 2)
    assert np.array_equal(
        RobustClassifier.load(tmp_path / "photos", small_backbone()).ood_score(test), model.ood_score(test)
    )
    assert load_model(tmp_path / "photos", small_backbone()).instant.class_names == ("blue", "red")


def test_damaged_and_missing_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no saved RobustClassifier"):
        RobustClassifier.load(tmp_path)
    with pytest.raises(NotFittedError):
        RobustClassifier().save(tmp_path / "new")
    rows, labels = points(12)
    RobustClassifier().fit(rows, labels).save(tmp_path / "model")
    facts = json.loads((tmp_path / "model" / FACTS).read_text())
    broken: list[dict[str, Any]] = [
        {"format": 9},
        {"dtype": "M8[s]"},
        {"classes": [1]},
        {"input": "pixels"},
        {"accept": "much"},
        {"accept": 3},
    ]
    for changed in broken:
        (tmp_path / "model" / FACTS).write_text(json.dumps({**facts, **changed}))
        with pytest.raises(UserError):
            RobustClassifier.load(tmp_path / "model")
    (tmp_path / "model" / FACTS).write_text("[")
    with pytest.raises(UserError, match="damaged"):
        RobustClassifier.load(tmp_path / "model")


def test_mistakes_are_sentences_and_value_errors(tmp_path: Path) -> None:
    images = photos(LABELED, 0)
    model = of_images().fit(images, LABELED)

    def refused(match: str, action: Callable[[], object]) -> None:
        with pytest.raises(UserError, match=match) as caught:
            action()
        assert isinstance(caught.value, ValueError)

    refused("uint8", lambda: model.predict(images / 255))
    refused("fitted on images, but these are features", lambda: model.predict(np.zeros((2, 48))))
    refused("one class", lambda: of_images().fit(images, ["red"] * 12))
    refused("no class", lambda: of_images().fit(images, [-1] * 12))
    refused("X is empty", lambda: RobustClassifier().fit([], []))
    refused("requires y", lambda: of_images().fit(images))
    refused("accept=2", lambda: of_images(accept=2).fit(images, LABELED))
    refused("'lite9' is unknown", lambda: RobustClassifier(backbone="lite9").fit(images, LABELED))
    refused("1 or 3 channels", lambda: model.predict(np.zeros((2, 8, 8, 4), np.uint8)))
    refused("is a folder", lambda: model.predict([tmp_path]))
    refused("holds no image", lambda: model.predict(tmp_path))
    refused("holds no folders with images", lambda: of_images().fit(tmp_path))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    refused(r"1 of 1 images cannot be read.*broken\.png", lambda: model.predict([broken]))
    with pytest.warns(UserWarning, match="left out"):
        of_images().fit(images, LABELED, tmp_path)
    with pytest.raises(ValueError, match="inconsistent"):
        of_images().fit(images, LABELED[:3])
