"""The picture of a finished run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.text
import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

import osp
from osp import Recipe
from osp.engine.data import Data, random_data
from osp.report.figure import own_style, png, save_png
from osp.report.picture import draw, headline, named_classes


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fixmatch"},
        {"method": "supervised", "unlabeled": 0},
        {"method": "supervised", "unlabeled": 10, "ood_ratio": 0.0},
        {"method": "supervised", "ood_ratio": 0.0, "id_classes": [0, 1], "val_per_class": 0},
    ],
)
def test_every_run_has_a_picture_with_something_in_it(fields: dict[str, Any], tmp_path: Path) -> None:
    recipe = Recipe(scale="demo", steps=4, options={"batch": 8}, **fields)
    run = osp.train(recipe, tmp_path / "run")
    with Image.open(run.path / "result.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert min(pixels.shape) > 300
    assert 0.02 < (pixels < 250).mean() < 0.95
    assert not [path for path in run.path.iterdir() if "partial" in path.name]


RESULT: dict[str, Any] = {
    "method": "a$\\frac$",
    "dataset": "folder",
    "labels_per_class": 10,
    "ood_ratio": 0.5,
    "accuracy": 87.0,
    "auroc": 79.5,
    "pool_auroc": None,
    "threshold": 0.5,
}
METRICS = [{"step": 1, "val_accuracy": 50.0}, {"step": 2, "val_accuracy": 60.0}]


def noise(folder: Path, names: tuple[str, ...]) -> Data:
    """A pool of noise with two classes of these names."""
    data = random_data((1, 8, 8), 2, 60, folder)
    return replace(data, class_names=names)


def texts(data: Data) -> str:
    """Everything that is written in the picture."""
    with own_style():
        figure = draw(data, np.linspace(0, 1, 60), RESULT, METRICS)
        return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_the_picture_names_the_classes_and_the_numbers_of_images(tmp_path: Path) -> None:
    written = texts(noise(tmp_path, ("cat", "dog")))
    assert "2 classes: cat, dog" in written
    assert "(0 images)" in written  # of noise there are no test images
    assert "20 validation images" in written
    said = headline(RESULT, 100, 150)
    assert "test accuracy 87.0 % (100 images)" in said
    assert "AUROC 79.5 (against 150 OOD images)" in said


def test_names_are_text_in_the_picture_never_formulas_or_controls(tmp_path: Path) -> None:
    data = noise(tmp_path, ("$\\frac$", "dog\x1b[31m\u202e"))
    assert "2 classes: $\\frac$, dog\\x1b[31m\\u202e" in texts(data)
    with own_style():
        save_png(draw(data, np.linspace(0, 1, 60), RESULT, METRICS), tmp_path / "result.png")
    assert (tmp_path / "result.png").stat().st_size > 10_000


@pytest.mark.parametrize("truth", [True, False])
def test_the_legend_of_the_scores_lies_above_the_bars(truth: bool, tmp_path: Path) -> None:
    data = noise(tmp_path, ("cat", "dog"))
    data = replace(data, truth=np.arange(60) % 2 == 0 if truth else None)
    with own_style():
        figure = draw(data, np.linspace(0, 1, 60) ** 4, RESULT, METRICS)
        png(figure)  # places everything
        scores = next(axes for axes in figure.findobj(Axes) if "OOD score" in axes.get_xlabel())
        legend = scores.get_legend()
        assert legend is not None
        bottom = legend.get_window_extent().y0
        assert all(bar.get_window_extent().y1 <= bottom for bar in scores.patches)
    assert "foreign" not in texts(data)


def test_a_thousand_long_names_do_not_fill_the_picture() -> None:
    assert len(named_classes(tuple("x" * 300 for _ in range(1000)))) < 160


def test_drawing_needs_no_latex_and_leaves_the_settings_of_matplotlib_alone(tmp_path: Path) -> None:
    with matplotlib.rc_context({"text.usetex": True, "font.size": 31.0}):
        before = dict(matplotlib.rcParams)
        with own_style():
            assert matplotlib.rcParams["text.usetex"] is False
            save_png(draw(noise(tmp_path, ("a", "b")), np.linspace(0, 1, 60), RESULT, METRICS), tmp_path / "x.png")
        assert dict(matplotlib.rcParams) == before


def test_training_does_not_switch_the_backend_of_matplotlib(tmp_path: Path) -> None:
    """In a process of its own: the first import decides, and pyplot must still find what the user chose."""
    code = (
        "import matplotlib; matplotlib.use('svg')\n"
        "import osp\n"
        "recipe = osp.Recipe(method='supervised', scale='demo', steps=2)\n"
        "run = osp.train(recipe, 'run')\n"
        "assert (run.path / 'result.png').stat().st_size > 10_000\n"
        "print(matplotlib.get_backend(), 'matplotlib.pyplot' in __import__('sys').modules)\n"
    )
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")  # matplotlib reads the one in the working folder
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["svg", "False"]
