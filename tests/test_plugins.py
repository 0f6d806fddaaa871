"""Files of code and installed plug-ins: what they do, what they are hashed into, and who may have them run."""

from __future__ import annotations

import json
import os
import py_compile
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import osp
import osp.plugins
from helpers.runs import Stopper
from helpers.runs import run as train_quietly
from osp import Recipe, UserError
from osp.bench.cells import Choice, expand
from osp.bench.grid import find_grid
from osp.bench.jobs import Job
from osp.data.view_source import Draw
from osp.engine.data import open_again, pixel_views
from osp.engine.signals import Interrupted
from osp.recipe import Plan, make_plan
from osp.recipe.code import OPTIONS
from osp.runs.folder import RunFolder
from osp.runs.run import Run

NETWORK = """
from torch import nn
from osp.nets import NetworkSpec

def build(shape, width):
    return nn.Sequential(nn.Conv2d(shape[0], width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

NETWORK = NetworkSpec("tiny-WIDTH", build, "one convolution", "here", "MIT", example="tiny-4")
"""

SCORE = """
from osp.scores import Score

class Cosine(Score):
    def forward(self, features, logits, classifier):
        return -features.norm(dim=1)
"""

DATA = """
import numpy as np
from osp.data import ImageSet, Source, SplitDefaults

def part(request, count):
    images = np.random.default_rng(count).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    return ImageSet(request.name, images, np.arange(count) % 3, ("cat", "dog", "cow"), mean=(0.5,), std=(0.25,))

def load(request):
    return part(request, 120), part(request, 30)

SOURCE = Source(load=load, grey=True, within=SplitDefaults((0, 1), 5, ood_ratio=0.5, val_per_class=5))
"""

VIEW = """
from osp.data.views import View

class Dark(View):
    def apply(self, images, draws):
        return images // 2
"""

CODE = {"network": NETWORK, "score": SCORE, "data": DATA, "weak": VIEW}
GROUPS = {
    "network": ("osp.networks", "plugged-4"),
    "score": ("osp.scores", "plugged"),
    "data": ("osp.data", "plugged"),
    "weak": ("osp.views", "plugged"),
}
ORDINARY = {"network": "cnn", "score": "own", "data": "digits", "weak": "weak"}


def asking(kind: str, name: str, **fields: Any) -> Recipe:
    options = {"batch": 8, "mu": 1, **({kind: name} if kind in OPTIONS else {})}
    named = {} if kind in OPTIONS else {kind: name}
    return Recipe(method="supervised", scale="demo", steps=4, eval_every=2, options=options, **named, **fields)


def named_again(kind: str, name: str) -> Recipe:
    return Recipe(options={kind: name}) if kind in OPTIONS else Recipe(**{kind: name})


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """A file of code that notes each time it is run."""

    def write(kind: str, name: str = "mine.py", more: str = "") -> str:
        file = tmp_path / name
        file.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n{CODE[kind]}{more}", encoding="utf-8")
        return str(file)

    return write


@pytest.mark.parametrize("kind", CODE)
def test_a_file_is_used_by_naming_it_and_needed_again_by_whoever_loads_the_model(
    kind: str, written: Callable[..., str], tmp_path: Path
) -> None:
    name = written(kind)
    run = osp.train(asking(kind, name), tmp_path / "run", progress=False)
    assert run.result["accuracy"] is not None
    model = run.model
    if kind == "score":
        assert (model.score, run.result["score"]) == ("mine", "mine")
    if kind == "data":
        assert (run.result["dataset"], model.class_names) == ("mine", ("cat", "dog"))
    if kind in ("data", "weak"):  # a model needs neither
        return
    stranger(name)
    with pytest.raises(
        UserError, match=rf"If you trust what is in there, give it again: osp\.load\(.*, {kind}='.*mine\.py'\)"
    ):
        osp.load(run.path)
    assert runs(tmp_path) == 1
    given: dict[str, Any] = {kind: name}
    again = osp.load(run.path, **given)
    assert again.threshold == model.threshold


def test_all_files_that_a_model_was_made_with_are_told_at_once(written: Callable[..., str], tmp_path: Path) -> None:
    score, network = written("score", "cosine.py"), written("network", "tiny.py")
    run = osp.train(asking("score", score, network=network), tmp_path / "run", progress=False)
    stranger(score, network)
    with pytest.raises(
        UserError, match=r"osp\.load\(.*, network='.*tiny\.py', score='.*cosine\.py'\), or osp report with"
    ):
        osp.load(run.path)
    assert osp.load(run.path, network=network, score=score).threshold == run.model.threshold


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("logits", r"The OOD score 'mine' must give one number per image: \d+, not \(\d+, 6\)"),
        ("features.norm(dim=1) * float('nan')", "The OOD score 'mine' gives numbers that are infinite, or none"),
    ],
)
def test_a_score_that_gives_no_number_per_image_is_told(returned: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORE.replace("-features.norm(dim=1)", returned), encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        osp.train(asking("score", str(tmp_path / "mine.py")), tmp_path / "run", progress=False)


def stranger(*names: str) -> None:
    """Forget that these files were named: as in another process."""
    osp.plugins._trusted.difference_update(map(osp.plugins.same_path, names))


def runs(folder: Path) -> int:
    return len((folder / "ran").read_text()) if (folder / "ran").exists() else 0


@pytest.mark.parametrize("kind", CODE)
def test_the_content_of_a_file_and_not_its_place_is_part_of_the_identity(
    kind: str, written: Callable[..., str]
) -> None:
    first, moved, edited = (
        written(kind, name, more) for name, more in (("a.py", ""), ("b.py", ""), ("c.py", "\nX = 1\n"))
    )
    plans = [make_plan(asking(kind, name)) for name in (first, moved, edited)]
    assert plans[0].contents.keys() == {kind}
    assert plans[0].identity() == plans[1].identity() != plans[2].identity()
    assert make_plan(Recipe(method="supervised")).contents == {}


def test_what_is_run_is_what_was_hashed_and_not_a_compiled_file_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("WHO = 'a stranger'\n")
    py_compile.compile(str(file))  # __pycache__, which says that it was made from a file of this size and time
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text("WHO = 'the user !'\n")
    os.utime(file, ns=times)
    osp.plugins.trust(str(file))
    module = osp.plugins.load_file(str(file), "method")
    assert (module.WHO, module.__file__) == ("the user !", str(file))


@pytest.mark.parametrize("kind", CODE)
def test_no_stored_plan_recipe_or_grid_has_code_run(kind: str, written: Callable[..., str], tmp_path: Path) -> None:
    name = written(kind)
    with pytest.raises(Interrupted):
        train_quietly(asking(kind, ORDINARY[kind]), tmp_path / "run", display=Stopper(2))
    folder = RunFolder(tmp_path / "run")
    honest = Plan.read(folder.plan)
    changes = {"options": {**honest.options, kind: name}} if kind in OPTIONS else {kind: name}
    for contents in ({}, {kind: "0" * 24}):
        folder.plan.write_text(honest.changed(contents=contents, **changes).dump())
        with pytest.raises(UserError, match=r"If you trust it, name it: .*mine\.py"):
            train_quietly(Recipe(), folder.path, resume=True)
        with pytest.raises(UserError, match=r"is not the one that the run in .* began with"):
            train_quietly(named_again(kind, name), folder.path, resume=True)
        stranger(name)
    if kind == "data":
        with pytest.raises(UserError, match="code that you have not named yourself"):
            open_again(Run(folder, {}, Plan.read(folder.plan)))
    (tmp_path / "recipe.yaml").write_text(asking(kind, name).dump())
    with pytest.raises(UserError, match=r"names the .* file .*mine\.py.*If you trust it, name it yourself"):
        Recipe.read(tmp_path / "recipe.yaml")
    place = {"data": f"datasets: [{name}]", "network": f"fields: {{network: {name}}}"}
    place |= {option: f"fields: {{options: {{{option}: {name}}}}}" for option in OPTIONS}
    (tmp_path / "grid.yaml").write_text(f"title: t\nmethods: [supervised]\n{place[kind]}\n")
    with pytest.raises(UserError, match=r"names the .* file .*mine\.py.*name it yourself: --"):
        find_grid(str(tmp_path / "grid.yaml"))
    assert runs(tmp_path) == 0
    choice = Choice(
        scale="demo", settings=() if kind == "data" else (f"{kind}={name}",), datasets=(name,) if kind == "data" else ()
    )
    (plan,) = expand(find_grid(str(tmp_path / "grid.yaml"), choice.named), choice).plans
    assert plan.contents.keys() == {kind}


@pytest.mark.parametrize("kind", CODE)
def test_a_stopped_run_goes_on_with_a_file_of_equal_content(
    kind: str, written: Callable[..., str], tmp_path: Path
) -> None:
    name = written(kind)
    with pytest.raises(Interrupted):
        train_quietly(asking(kind, name), tmp_path / "run", display=Stopper(2))
    moved, other = written(kind, "moved.py"), written(kind, "other.py", "\nX = 1\n")
    if kind == "data":
        Path(moved).unlink()  # the name of the images is the file's: it stays
        moved = name
    with pytest.raises(UserError, match=r"mine\.py"):
        train_quietly(Recipe(), tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"was started with other options:\n  .*other\.py' here"):
        train_quietly(named_again(kind, other), tmp_path / "run", resume=True)
    train_quietly(named_again(kind, moved), tmp_path / "run", resume=True)
    assert RunFolder(tmp_path / "run").read_result() is not None


@pytest.mark.parametrize("kind", CODE)
def test_the_command_takes_a_file_and_a_recipe_that_names_the_same(
    kind: str, written: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osp.cli import main

    written(kind)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(asking(kind, "./mine.py").dump())
    command = ["osp", "train", "--recipe", "recipe.yaml", "--out", "run"]
    named = ["--set", f"{kind}=mine.py"] if kind in OPTIONS else [f"--{kind}", "mine.py"]
    for more, code in ([], 2), (named, 0):
        monkeypatch.setattr(sys, "argv", [*command, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (code, None if code == 0 else code)
        assert (runs(tmp_path) > 0) == (code == 0)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"] is not None


@pytest.mark.parametrize("kind", CODE)
def test_an_edited_plug_in_is_another_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, name = GROUPS[kind]
    module = f"plugged_{kind}"
    code = CODE[kind].replace("tiny-", "plugged-")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("plugged", module, group)
    monkeypatch.setattr(osp.plugins, "entry_points", lambda group: [point] if point.group == group else [])
    identities = []
    for more in ("", "\nX = 1\n", ""):
        (tmp_path / f"{module}.py").write_text(code + more)
        identities.append(make_plan(asking(kind, name)).identity())
    assert identities[0] == identities[2] != identities[1]
    monkeypatch.delitem(sys.modules, module)


def test_a_view_stands_where_the_method_asks_for_another_and_for_none_else(
    written: Callable[..., str], tmp_path: Path
) -> None:
    run = train_quietly(asking("weak", written("weak")), tmp_path / "run")
    data = open_again(run)
    views = pixel_views(data.train, data, run.plan, torch.device("cpu"))
    images = data.train.take([3, 5])
    draw = Draw(seed=0, step=1, stream="labeled", batch=2)
    made = views.views(np.array([3, 5]), ["weak", "weak2", "plain"], draw)
    assert torch.equal(made["weak"], views.augmenter.normalize(images // 2))
    assert torch.equal(made["weak2"], made["weak"])
    assert torch.equal(made["plain"], views.augmenter.normalize(images))
    with pytest.raises(UserError, match=r"Unknown view 'stronk'\. Did you mean 'strong'"):
        make_plan(Recipe(options={"strong": "stronk"}))


def test_a_run_with_the_usual_views_is_the_one_made_before_views_could_be_named() -> None:
    plan = make_plan(Recipe(method="fixmatch"))
    before = {key: value for key, value in plan.options.items() if key not in ("weak", "strong")}
    assert plan.changed(options=before).identity() == plan.identity()
    assert make_plan(Recipe(method="fixmatch", options={"strong": "weak"})).identity() != plan.identity()


def test_a_job_for_elsewhere_names_its_files_from_the_root(
    written: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written("score")
    monkeypatch.chdir(tmp_path)
    recipe = asking("score", "./mine.py")
    job = Job(plan=make_plan(recipe), name="name").anywhere()
    assert job.recipe(1)["options"] == {**recipe.options, "score": str(tmp_path / "mine.py")}


def test_what_is_no_such_file_is_told_in_a_sentence(written: Callable[..., str], tmp_path: Path) -> None:
    score = written("score")
    with pytest.raises(UserError, match=r"mine\.py is no network file: a network file has a constant NETWORK"):
        make_plan(asking("network", score))
    with pytest.raises(UserError, match=r"mine\.py is no data set file: its module declares no SOURCE"):
        make_plan(asking("data", score))
    with pytest.raises(UserError, match=r"The network file .*gone\.py does not exist"):
        make_plan(asking("network", str(tmp_path / "gone.py")))
    (tmp_path / "digits.py").write_text(DATA)
    with pytest.raises(UserError, match="another set has its name"):
        make_plan(asking("data", str(tmp_path / "digits.py")))
