"""A data set is one file: found, loaded, described, split and trained on without a change anywhere else."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import osp
import osp.data.sources
import osp.plugins
from helpers.runs import run
from osp.cli.lists import datasets
from osp.data.source import Description
from osp.data.split import make_split, spec_for
from osp.errors import UserError
from osp.recipe import make_plan

STRIPES = '''
"""Horizontal and vertical stripes, and noise of no class."""

import numpy as np

from osp.data import ImageSet, Request, Source, SplitDefaults


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    side = request.size or 12
    draws = np.random.default_rng(0)
    sets = []
    for per_class in (60, 20):
        images = draws.integers(0, 60, (3 * per_class, 1, side, side), dtype=np.uint8)
        labels = np.repeat(np.arange(3), per_class).astype(np.int64)
        images[labels == 0, :, ::2] += 180
        images[labels == 1, :, :, ::2] += 180
        sets.append(ImageSet(request.name, images, labels, ("flat", "steep", "none"), (0.3,), (0.3,)))
    return sets[0], sets[1]


SOURCE = Source(load=load, grey=True, within=SplitDefaults((0, 1), 5, ood_ratio=0.5, val_per_class=5))
'''


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more file in the folder of sources, and nothing else."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "stripes.py").write_text(STRIPES)
    monkeypatch.setattr(osp.data.sources, "__path__", [*osp.data.sources.__path__, str(tmp_path / "more")])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("osp.data.sources.stripes", None)


def test_a_data_set_is_added_in_one_file(stripes: None, tmp_path: Path) -> None:
    assert "stripes" in osp.data.available()
    train, test = osp.data.load("stripes")
    assert (len(train), train.name, train.shape) == (180, "stripes", (1, 12, 12))
    described = osp.data.describe_set("stripes", size=16)
    assert (described.train, described.test, described.shape) == ((60,) * 3, (20,) * 3, (1, 16, 16))
    assert "stripes" in [info.name for info in osp.data.describe(tmp_path)]
    split = make_split(spec_for("stripes", seed=0), train, test)
    assert (len(split.labeled), len(split.val), split.unlabeled_is_ood.mean()) == (10, 10, 0.5)
    recipe = osp.Recipe(data="stripes", method="supervised", steps=60, eval_every=60, threads=1, options={"batch": 16})
    assert make_plan(recipe).network == "cnn"  # for small grey images, as the file says
    result = run(recipe, tmp_path / "run").result
    assert result["dataset"] == "stripes"
    assert result["accuracy"] > 80  # chance is 50; stripes are told apart without fail


def test_the_example_of_the_docs_can_be_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8").split("## A data set of your own")[1]
    code = "\n".join(line for line in page.split("Optional:")[0].splitlines() if line.startswith("    ") or not line)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "farm.py").write_text(textwrap.dedent(code), "utf-8")
    monkeypatch.setattr(osp.data.sources, "__path__", [*osp.data.sources.__path__, str(tmp_path / "more")])
    draws = np.random.default_rng(0)
    for part, count in (("train", 240), ("test", 60)):
        np.save(tmp_path / f"{part}-images.npy", draws.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8))
        np.save(tmp_path / f"{part}-labels.npy", np.arange(count) % 3)
    recipe = osp.Recipe(data="farm", data_dir=str(tmp_path), method="supervised", network="cnn", steps=2, scale="demo")
    try:
        assert run(recipe, tmp_path / "run").result["auroc"] is not None
    finally:
        sys.modules.pop("osp.data.sources.farm", None)


def test_a_set_that_nobody_looked_for_is_not_said_to_be_found(
    stripes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    infos = {info.name: info for info in osp.data.describe(tmp_path / "nowhere")}
    assert infos["stripes"].found is None
    assert infos["mnist"].found is False
    datasets(str(tmp_path / "nowhere"))
    assert "\nstripes       known" in capsys.readouterr().out


def announced(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Entry points as installed packages announce them."""
    monkeypatch.setattr(osp.plugins, "entry_points", lambda group: [point for point in points if point.group == group])


@pytest.mark.parametrize("value", ["my_sets.stripes", "my_sets.stripes:SOURCE"])
def test_a_data_set_from_outside_is_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    (tmp_path / "my_sets").mkdir()
    (tmp_path / "my_sets" / "stripes.py").write_text(STRIPES)
    monkeypatch.syspath_prepend(str(tmp_path))
    announced(monkeypatch, EntryPoint("striped", value, "osp.data"))
    assert "striped" in osp.data.available()
    assert len(osp.data.load("striped")[0]) == 180
    assert osp.data.get("striped").grey


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "striped_sets.py").write_text(STRIPES)
    info = tmp_path / "striped_sets-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: striped-sets\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[osp.data]\nstriped = striped_sets\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import osp.data; "
        "print('striped' in osp.data.available(), 'striped_sets' in sys.modules, len(osp.data.load('striped')[0]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "180"]


def test_what_is_no_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_source_empty.py").write_text("")
    (tmp_path / "no_source_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("empty", "broken", "gone")
    announced(monkeypatch, *(EntryPoint(name, f"no_source_{name}", "osp.data") for name in names))
    with pytest.raises(UserError, match="'empty' cannot be loaded: its module declares no SOURCE"):
        osp.data.load("empty")
    with pytest.raises(UserError, match="'broken' cannot be loaded: ZeroDivisionError: division by zero"):
        osp.data.load("broken")
    with pytest.raises(UserError, match="'gone' cannot be loaded: ModuleNotFoundError: No module"):
        osp.data.load("gone")
    infos = {info.name: info for info in osp.data.describe(tmp_path)}  # one broken package does not hide the others
    assert "cannot be loaded" in str(infos["broken"].problem)
    assert infos["digits"].found


def test_listing_the_names_imports_none_of_the_files() -> None:
    program = (
        "import sys, osp.data; osp.data.available(); "
        "print([m for m in sys.modules if m.startswith('osp.data.sources.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_showing_what_sets_there_are_imports_no_torch(tmp_path: Path) -> None:
    program = "import sys, osp.data; osp.data.describe(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["digits", "gaussian", "uniform"])
def test_sets_without_files_are_described_as_they_are_loaded(name: str) -> None:
    described = osp.data.describe_set(name)
    train, test = osp.data.load(name)
    assert test is not None
    assert described.class_names == train.class_names
    assert described.shape == train.shape
    assert sum(described.train) + described.train_unknown == len(train)
    assert described.test is not None
    assert sum(described.test) + described.test_unknown == len(test)
    if train.labels is not None:
        assert described.smallest_class == np.bincount(train.labels).min()


@pytest.mark.parametrize("name", ["gaussian", "uniform"])
def test_noise_is_described_without_being_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osp.data.sources.gaussian._bits16", lambda *_: pytest.fail("made"))
    assert osp.data.describe_set(name, size=1024).shape == (3, 1024, 1024)


def test_no_classes_have_no_smallest_one() -> None:
    assert Description("toy", ("cat", "dog"), (9, 4), None, (3, 32, 32)).smallest_of(()) is None
