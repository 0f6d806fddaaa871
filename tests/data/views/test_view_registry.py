"""Views by name: the files of the folder, near misses, and one added in a single file or by an installed package."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import Tensor

import osp.data.views
import osp.plugins
from osp import Recipe, UserError
from osp.data.views import Augmenter, Draws, View, available, find
from osp.data.views.strong import Strong
from osp.engine.train import train
from osp.randomness import generator

DARK = """
import torch
from osp.data.views import View


class Dark(View):
    def draw(self, n, generator):
        return {"by": torch.randint(0, 100, (n,), generator=generator)}

    def apply(self, images, draws):
        by = draws["by"].to(images.device)[:, None, None, None]
        return (images.int() - by).clamp_(min=0).to(torch.uint8)
"""

MINE = """
import torch.nn.functional as F
from osp.methods import Method, StreamSpec


class Mine(Method):
    def streams(self, stage):
        return {"labeled": StreamSpec("labeled", self.options.batch, ("VIEW", "VIEW2"))}

    def losses(self, batch, step):
        views = batch["labeled"]
        self.log("apart", (views["VIEW"] != views["VIEW2"]).float().mean())
        return {view: F.cross_entropy(self.net(views[view]), views.targets) for view in ("VIEW", "VIEW2")}
"""


def recipe(folder: Path, view: str) -> Recipe:
    (folder / "mine.py").write_text(MINE.replace("VIEW", view), encoding="utf-8")
    return Recipe(scale="demo", method=str(folder / "mine.py"), steps=5, log_every=1)


def test_the_views_of_the_package_are_its_files() -> None:
    helpers = {"base", "image_ops"}
    stems = {path.stem for path in Path(osp.data.views.__file__).parent.glob("[!_]*.py")} - helpers
    assert set(available()) >= stems >= {"plain", "flip", "weak", "strong"}
    assert all(issubclass(find(stem), View) for stem in stems)
    assert find("strong") is find("strong2") is Strong


@pytest.mark.parametrize("name", ["image_ops", "image-ops", "base", "_x", "", "2"])
def test_what_is_no_view_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"Unknown view '{name}'"):
        find(name)


def test_a_misspelled_view_is_told_before_there_is_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"stream 'labeled': Unknown view 'stronk'\. Did you mean 'strong'\?"):
        train(recipe(tmp_path, "stronk"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_view_is_added_by_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dark.py").write_text(DARK, encoding="utf-8")
    monkeypatch.setattr(osp.data.views, "__path__", [*osp.data.views.__path__, str(tmp_path)])
    try:
        assert "dark" in available()
        augmenter = Augmenter((1, 8, 8), [0.0], [1 / 255])
        images = torch.full((50, 1, 8, 8), 120, dtype=torch.uint8)
        plan = augmenter.plan("dark", 50, generator("dark"))
        expected = 120 - plan.draws["by"][:, None, None, None].expand(50, 1, 8, 8)
        torch.testing.assert_close(augmenter.apply(images, plan), expected.float())
        assert torch.equal(augmenter.apply(images[1::2], plan[1::2]), augmenter.apply(images, plan)[1::2])
        run = train(recipe(tmp_path, "dark"), tmp_path / "run")
        lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8")
        assert run.result["steps"] == 5
        assert '"apart": 0.0' not in lines  # two draws of one view differ
        assert "apart" in lines
    finally:
        sys.modules.pop("osp.data.views.dark", None)


class Inverted(View):
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        return 255 - images


def test_an_installed_package_may_announce_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("inverted", f"{__name__}:Inverted", "osp.views")
    monkeypatch.setattr(osp.plugins, "entry_points", lambda group: [point] if group == point.group else [])
    assert "inverted" in available()
    assert find("inverted2") is Inverted
    with pytest.raises(UserError, match="Did you mean 'inverted'"):
        find("invertet")
    with pytest.raises(UserError, match="Unknown view 'inverted1'"):  # as where features are stored
        find("inverted1")
    numbered = EntryPoint("inverted3", f"{__name__}:Inverted", "osp.views")
    monkeypatch.setattr(osp.plugins, "entry_points", lambda group: [numbered] if group == numbered.group else [])
    assert find("inverted3") is Inverted
    assert isinstance(Augmenter((1, 8, 8), [0.0], [1.0]).view("inverted3"), Inverted)


def test_a_module_without_a_view_of_its_own_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("both", "osp.data.views", "osp.views")
    monkeypatch.setattr(osp.plugins, "entry_points", lambda group: [point] if group == point.group else [])
    with pytest.raises(UserError, match="'both' cannot be loaded: exactly one class derived from View"):
        find("both")
