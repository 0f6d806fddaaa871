"""Drawings from numbers: what is on them, and that they read in grey and hold no formulas."""

from __future__ import annotations

from typing import Any

import matplotlib.text
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_info, threadpool_limits

from helpers.finished import finished
from osp.evaluate.predictions import sample_rows
from osp.report.charts import Line, draw_confusion, draw_lines, draw_scores, over_seeds, worst_pairs
from osp.report.curves import curves, losses, shares, stage_changes
from osp.report.embedding import draw_map, embed, feature_map
from osp.report.figure import line_style, own_style, png, svg
from osp.report.galleries import doubtful
from osp.report.trained import TrainedView


def words(figure: Figure) -> str:
    """Everything written in a figure, ticks too, once it is drawn."""
    png(figure)
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_no_two_of_seventy_lines_look_alike_without_color() -> None:
    styles = [line_style(number) for number in range(70)]
    assert len({(style["marker"], str(style["linestyle"])) for style in styles}) == 70


def test_points_are_means_over_seeds_with_sample_deviations() -> None:
    line = over_seeds("osp", [(2, 1.0), (1, 10.0), (2, 3.0), (2, 5.0)])
    assert line == Line("osp", (1, 2), (10.0, 3.0), (0.0, 2.0), 1)


@pytest.mark.parametrize("points", [0, 1, 5, 40])
def test_lines_are_drawn_with_any_number_of_points(points: int) -> None:
    with own_style():
        figure = Figure()
        line = Line("a$\\frac$", tuple(range(points)), (1.0,) * points, (0.5,) * points, 2)
        draw_lines(figure.subplots(), [line] if points else [], "x", "y")
        said = words(figure)
    assert ("a$\\frac$" in said) == (points > 0)
    assert ("no run yet" in said) == (points == 0)


def train_line(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "kind": "train", "stage": "one", **values, "lr": 0.1, "images_seen": 9}


def test_terms_of_the_loss_are_told_from_what_the_method_notes() -> None:
    lines = [
        train_line(1, kept_share=0.4, loss=1.5, ce=1.5, odc=0.0, mask_rate=0.7),
        train_line(2, loss=2.0, ce=1.5, odc=0.5, mask_rate=0.7, threshold=3.0),
    ]
    assert losses(lines) == ["loss", "ce", "odc"]
    assert shares(lines, ["step", "lr", "images_seen", "loss", "ce", "odc"]) == ["kept_share", "mask_rate"]


def test_stages_change_where_another_stage_has_its_first_line() -> None:
    assert stage_changes([{"step": s, "stage": "ab"[s > 3]} for s in (1, 3, 4, 9)]) == [4]


def test_curves_show_what_a_run_says_and_nothing_else() -> None:
    with own_style():
        of_osp = curves(finished().metrics)
        of_labels = curves(finished("supervised").metrics)
        said = words(of_osp["Losses"])
    assert "Bank" in of_osp
    assert not {"Bank", "What it keeps of the pool"} & set(of_labels)
    assert {"ce", "matching", "rotation"} <= set(said.split())
    assert "mathdefault" not in said  # labels of logarithmic axes are formulas in matplotlib


def test_the_histogram_says_how_many_lie_above_the_threshold() -> None:
    with own_style():
        figure = Figure()
        scores = {"ID": np.array([0.0, 0.1, 0.2, 0.9]), "OOD": np.array([0.8, 0.1])}
        draw_scores(figure.subplots(), scores, 0.5, "title")
        said = words(figure)
    assert "ID: 4 images, 25 % above" in said
    assert "OOD: 2 images, 50 % above" in said


def test_the_worst_pair_is_the_largest_share_of_a_class() -> None:
    matrix = np.array([[90, 10, 0], [1, 3, 0], [0, 0, 5]])
    assert [(pair.truth, pair.predicted, pair.share) for pair in worst_pairs(matrix)] == [(1, 0, 25.0), (0, 1, 10.0)]


@pytest.mark.parametrize("classes", [2, 20, 60])
def test_a_confusion_matrix_of_any_size_is_drawn(classes: int) -> None:
    names = tuple(f"name {number}" for number in range(classes))
    with own_style():
        figure = Figure()
        draw_confusion(figure.subplots(), np.eye(classes, dtype=int), names)
        assert ("name 1" in words(figure)) == (classes <= 25)


def test_the_map_keeps_neighbors_together_and_is_the_same_each_time() -> None:
    draws = np.random.default_rng(0)
    centers = np.repeat(20 * np.eye(3, 8), 15, axis=0)
    features = centers + draws.normal(size=centers.shape)
    places = embed(features)
    assert (embed(features) == places).all()
    assert places.min() == 0
    assert places.max() == 1
    distance = np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(45)
    owner = np.repeat(np.arange(3), 15)
    assert (owner[distance.argmin(axis=1)] == owner).mean() > 0.95


def test_the_map_of_a_run_has_known_classes_and_black_ood_points() -> None:
    run = finished()
    found = feature_map(run, 40, 20)
    assert found is not None
    assert (len(found), int((found.classes < 0).sum())) == (60, 20)
    test = run.group("test")
    assert test is not None
    assert test.targets is not None
    assert (test.targets[found.rows[:40]] == found.classes[:40]).all()
    with own_style():
        figure = Figure()
        draw_map(figure.subplots(), found, run.class_names)
        assert "OOD" in words(figure)
        assert svg(figure) == svg(figure)


def test_rows_are_spread_from_first_to_last() -> None:
    assert sample_rows(10, 4).tolist() == [0, 3, 6, 9]
    assert sample_rows(2, 4).tolist() == [0, 1]
    assert sample_rows(0, 4).tolist() == []


def test_a_label_looks_wrong_where_all_neighbors_have_another() -> None:
    draws = np.random.default_rng(0)
    features = np.repeat(np.eye(2, 4), 10, axis=0) + 0.01 * draws.normal(size=(20, 4))
    targets = np.repeat([0, 1], 10)
    targets[3] = 1
    assert doubtful(features, targets).tolist() == [3]


def test_galleries_hold_the_surest_the_most_unknown_and_the_mistakes() -> None:
    run = finished()
    assert run.predictions is not None
    found = {gallery.title: gallery for gallery in TrainedView(run).galleries(None, "")}
    pool, test = run.predictions.pool, run.predictions.groups["test"]
    scores = pool.scores[run.predictions.score]
    assert found["Most unknown"].shots[0].where.number == pool.ids[scores.argmax()]
    assert found["Least unknown"].shots[0].where.number == pool.ids[scores.argmin()]
    named_0 = np.flatnonzero(pool.predicted == pool.predicted[0])
    surest = pool.ids[named_0[pool.confidence[named_0].argmax()]]
    assert surest in [shot.where.number for shot in found["Surest of each class"].shots]
    wrong = set(test.ids[test.predicted != test.targets].tolist())
    assert {shot.where.number for shot in found["Mistakes"].shots} <= wrong
    assert len(found["Mistakes"].shots) == min(24, len(wrong))


def test_a_map_is_made_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = PCA.fit_transform

    def watched(self: PCA, rows: np.ndarray) -> np.ndarray:
        seen.extend(each["num_threads"] for each in threadpool_info())
        made: np.ndarray = plain(self, rows)
        return made

    monkeypatch.setattr(PCA, "fit_transform", watched)
    with threadpool_limits(2):
        embed(np.random.default_rng(0).normal(size=(8, 6)))
    assert set(seen) == {1}
