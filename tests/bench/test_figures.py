"""The paper's figures from finished runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.text
import numpy as np
import pytest
from PIL import Image

from helpers.finished import STEPS, finished
from osp import UserError
from osp.bench.figures import available, draw, tsne
from osp.bench.figures._lines import FIGURES, by_method, by_task, line_figure, lines_of
from osp.report.embedding import feature_map
from osp.report.figure import own_style, png
from osp.runs.run import Run


def with_result(run: Run, **values: float | str) -> Run:
    return replace(run, result={**run.result, **values})


def some_runs() -> list[Run]:
    return [finished(), finished("supervised")]


def test_every_figure_of_the_paper_is_there() -> None:
    names = ("method", "tsne", "ratio", "labels", "cam", "alpha", "variance", "angle", "time", "curve")
    assert set(available()) == {f"figure-{name}" for name in names}


@pytest.mark.parametrize("name", available())
def test_every_figure_is_drawn_as_png_and_svg_with_something_on_it(name: str, tmp_path: Path) -> None:
    paths = draw(name, some_runs(), tmp_path / "new")
    assert {path.suffix for path in paths} == {".png", ".svg"}
    assert sorted(path.name for path in paths) == sorted(path.name for path in (tmp_path / "new").iterdir())
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("L"))
            assert min(pixels.shape) > 200
            assert 0.005 < (pixels < 200).mean() < 0.95
        else:
            content = path.read_bytes()
            assert b"<svg" in content
            assert b"mathdefault" not in content


def test_an_unknown_figure_is_told_with_its_near_miss(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="figure-ratio"):
        draw("figure-ration", [], tmp_path)


@pytest.mark.parametrize("name", ["figure-ratio", "figure-angle", "figure-time"])
def test_without_runs_a_line_figure_says_so(name: str, tmp_path: Path) -> None:
    assert draw(name, [], tmp_path)


@pytest.mark.parametrize("name", ["figure-tsne", "figure-cam"])
def test_figures_that_need_more_than_results_say_what_is_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run"):
        draw(name, [], tmp_path)


@pytest.fixture(scope="module")
def without_arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose map was drawn, as a store in a repository keeps it."""
    copy = tmp_path_factory.mktemp("maps") / "kept"
    shutil.copytree(finished().folder.path, copy)
    assert tsne.kept_map(Run.read(copy)) is not None
    (copy / "predictions.npz").unlink()
    return copy


def test_a_map_once_drawn_is_drawn_again_without_the_features(without_arrays: Path, tmp_path: Path) -> None:
    run, before = Run.read(without_arrays), feature_map(finished())
    kept = tsne.kept_map(run)
    assert before is not None
    assert kept is not None
    assert np.abs(kept.places - before.places).max() < 1e-4
    assert kept.classes.tolist() == before.classes.tolist()
    assert -1 in kept.classes
    assert draw("figure-tsne", [run], tmp_path)


def test_a_map_that_cannot_be_written_is_drawn_all_the_same(tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished().folder.path, copy)
    (copy / "map.json").unlink(missing_ok=True)
    (copy / "map.json").mkdir()  # the tests may run as root, for whom nothing is read-only
    assert tsne.kept_map(Run.read(copy)) is not None


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"places": [], "classes": []}',
        '{"places": [[0.1, 0.2]], "classes": [0, 1]}',
        '{"places": [[0.1]], "classes": [0]}',
        '{"places": [[0.1, NaN]], "classes": [0]}',
        '{"places": [[0.1, 0.2]], "classes": [-2]}',
    ],
)
def test_a_damaged_map_is_a_sentence(content: str, without_arrays: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(without_arrays, copy)
    (copy / "map.json").write_text(content)
    with pytest.raises(UserError, match=r"map\.json is damaged: .+ Delete it\."):
        draw("figure-tsne", [Run.read(copy)], tmp_path)


def test_lines_are_means_over_seeds_by_method_in_the_papers_order() -> None:
    runs = [
        with_result(finished("supervised"), accuracy=value, ood_ratio=at, method=method)
        for method, at, value in (("osp", 0.3, 90.0), ("osp", 0.3, 92.0), ("osp", 0.6, 80.0), ("mtc", 0.3, 70.0))
    ]
    assert list(by_method(runs)) == ["mtc", "osp"]
    lines = lines_of(runs, FIGURES["ratio"][0])
    assert [(line.name, line.x, line.y) for line in lines] == [
        ("mtc", (0.3,), (70.0,)),
        ("osp", (0.3, 0.6), (91.0, 80.0)),
    ]


def test_over_training_the_control_is_a_line_of_its_own_and_by_alpha_it_is_a_point() -> None:
    run, control = finished(), finished(alpha=0.0)
    lines = {line.name: line for line in lines_of([run, control], FIGURES["curve"][0])}
    seen = [(e["step"], e["val_accuracy"]) for e in run.metrics if e["kind"] == "eval"]
    assert sorted(lines) == ["osp", "osp, alpha 0"]
    assert list(zip(lines["osp"].x, lines["osp"].y, strict=True)) == seen
    assert seen
    assert [line.x for line in lines_of([run, control], FIGURES["alpha"][0])] == [(0.0, 0.8)]


def written(name: str, runs: list[Run]) -> str:
    with own_style():
        (figure,) = line_figure(runs, FIGURES[name]).values()
        png(figure)
    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_axes_have_the_settings_that_were_run() -> None:
    runs = some_runs()
    assert "0.6" in written("ratio", runs).split()
    assert "10" in written("labels", runs).split()
    said = written("alpha", runs)
    assert "0.8" in said.split()
    assert "supervised" not in said


def test_runs_of_one_length_are_one_point_of_cost_and_accuracy() -> None:
    base = finished("supervised")
    pairs = ((10.0, 50.0), (30.0, 60.0))
    runs = [with_result(base, seconds=seconds, accuracy=accuracy) for seconds, accuracy in pairs]
    (line,) = lines_of(runs, FIGURES["time"][0])
    assert (line.x, line.y, line.seeds) == ((20.0,), (55.0,), 2)
    assert base.plan.steps == STEPS


def test_names_from_disk_are_text_in_figures() -> None:
    assert "a$\\frac$" in written("ratio", [with_result(finished("supervised"), method="a$\\frac$")])


def test_runs_of_several_shares_of_ood_images_are_never_averaged_as_seeds() -> None:
    runs = [with_result(finished(), ood_ratio=0.3), with_result(finished("supervised"), ood_ratio=0.6)]
    assert [*by_task(runs)] == ["digits, 30 % OOD", "digits, 60 % OOD"]
    assert [*by_task(runs[:1])] == ["digits"]
    close = [with_result(finished(), ood_ratio=ratio) for ratio in (0.12, 0.125, 0.12500001)]
    assert {name: len(each) for name, each in by_task(close).items()} == {
        "digits, 12 % OOD": 1,
        "digits, 12.5 % OOD": 2,
    }
    axes = line_figure(runs, FIGURES["curve"])[""].axes
    assert [each.get_title() for each in axes[:4:2]] == ["digits, 30 % OOD, 1 seed", "digits, 60 % OOD, 1 seed"]
    assert len(line_figure(runs, FIGURES["ratio"])[""].axes) == 1
