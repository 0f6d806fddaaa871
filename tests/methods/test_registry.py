"""Finding methods: by name, in a file of one's own, in an installed package."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import osp
from osp import Recipe, UserError
from osp.engine.train import train
from osp.methods import Method, available, get, registry
from osp.methods.supervised import Supervised
from osp.recipe import make_plan

MINE = """
from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from osp.methods import Method, Options, StreamSpec
from osp.methods.supervised import Supervised  # imported, not defined here: not this file's method


class MyOptions(Options):
    sharpness: float | None = Field(2.0, gt=0, description="factor of the logits")


class Mine(Method):
    Options = MyOptions

    def streams(self, stage):
        return {"labeled": StreamSpec("labeled", self.options.batch, ("weak",))}

    def losses(self, batch, step):
        logits = self.options.sharpness * self.net(batch["labeled"]["weak"])
        return {"ce": F.cross_entropy(logits, batch["labeled"].targets)}
"""


def write(folder: Path, text: str, name: str = "my_method.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_the_methods_of_the_package_are_its_files() -> None:
    folder = Path(registry.__file__).parent
    stems = {path.stem for path in folder.glob("*.py")}
    files = {stem.replace("_", "-") for stem in stems if not stem.startswith("_")} - {"base", "declared", "registry"}
    assert set(available()) >= files
    assert not any(name.startswith("-") for name in available())  # what methods share, such as _published.py, is none
    assert {"fixmatch", "supervised"} <= files
    assert get("supervised") is Supervised


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UserError, match=r"Unknown method 'supervized'\. Did you mean 'supervised'\?"):
        get("supervized")


def test_a_method_file_runs_with_options_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, MINE)
    assert get(path).name == "my-method"
    recipe = Recipe(method=path, scale="demo", steps=10, options={"sharpness": 3.0, "batch": 8})
    run = train(recipe, tmp_path / "run")
    assert run.result["steps"] == 10
    with pytest.raises(UserError, match="sharpness: -1"):
        make_plan(Recipe(method=path, options={"sharpness": -1}))


def test_loading_a_run_never_runs_its_method_file_unless_it_is_given_again(tmp_path: Path) -> None:
    path = write(tmp_path, MINE)
    run = train(Recipe(method=path, scale="demo", steps=2, options={"batch": 8}), tmp_path / "run")
    write(tmp_path, MINE + "\nraise SystemError('this file was run')\n")
    assert len(osp.load(run.path).class_names) == 6  # its score is one that any network has: the file is not needed


SCORED = """
import torch
from osp.methods.supervised import Supervised as Base
from osp.scores import Score

class Length(Score):
    name = "length"

    def forward(self, features, logits, classifier):
        return -features.norm(dim=1)

class Mine(Base):
    def __init__(self, options, network, task):
        super().__init__(options, network, task)
        self.use_score(Length(network.feature_dim, task.num_classes))
"""


def test_a_score_of_a_method_file_that_is_not_reported_is_left_out_without_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, SCORED)
    run = train(Recipe(method=path, scale="demo", steps=2, options={"batch": 8}), tmp_path / "run")
    assert (run.result["score"], run.result["own_score"]) == ("pool", "length")
    write(tmp_path, SCORED + "\nraise SystemError('this file was run')\n")
    model = osp.load(run.path)
    assert isinstance(model, osp.Predictor)
    assert "length" not in model.scores
    assert model.ood_score(np.zeros((2, 8, 8), np.uint8)).shape == (2,)


def test_a_score_of_a_method_file_needs_the_file_again(tmp_path: Path) -> None:
    path = write(tmp_path, SCORED)
    options = {"batch": 8, "score": "own"}
    run = train(Recipe(method=path, scale="demo", steps=2, options=options), tmp_path / "run")
    assert run.result["score"] == run.model.score == "length"
    write(tmp_path, SCORED + "\nraise SystemError('this file was run')\n")
    with pytest.raises(UserError, match="If you trust what is in there, give it again"):
        osp.load(run.path)
    write(tmp_path, SCORED)
    images = np.zeros((2, 8, 8), np.uint8)
    model = osp.load(run.path, method=path)
    np.testing.assert_allclose(model.ood_score(images), -np.linalg.norm(model.features(images), axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine(:\n", "cannot be loaded: SyntaxError"),
        ("import no_such_module_at_all", "cannot be loaded: ModuleNotFoundError"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("x = 1", "exactly one class derived from Method is wanted; found none"),
        ("from osp.methods import Method\nclass A(Method): ...\nclass B(Method): ...", "found A, B"),
        ("from osp.methods.supervised import Supervised", "found none"),
    ],
)
def test_a_file_that_is_no_method_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        get(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        get(str(tmp_path / "nowhere.py"))
    with pytest.raises(UserError, match="does not exist"):
        make_plan(Recipe(method="./nowhere.py"))


def test_two_files_of_the_same_name_are_two_methods(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = get(write(tmp_path / "a", MINE)), get(write(tmp_path / "b", MINE))
    assert first is not second
    assert first.__module__ != second.__module__


class Announced(Method):
    name = "announced"


def test_an_installed_package_may_announce_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("announced", f"{__name__}:Announced", "osp.methods")
    monkeypatch.setattr(registry._methods, "installed", lambda: {"announced": point})
    assert "announced" in available()
    assert get("announced") is Announced
