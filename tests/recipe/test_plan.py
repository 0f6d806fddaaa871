"""Plans: decided once, kept, compared by name; their identity is what affects the result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image
from pydantic import Field

from osp import Plan, Recipe, UserError
from osp.engine.train import build_method
from osp.methods import Task, available, registry
from osp.methods.fixmatch import FixMatch, FixMatchOptions
from osp.recipe import make_plan, read_fields


@pytest.mark.parametrize("method", available())
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_plan_survives_its_file(method: str, preset: Any, tmp_path: Path) -> None:
    plan = make_plan(Recipe(method=method, preset=preset, id_classes=(3, "5", 1)))
    (tmp_path / "plan.yaml").write_text(plan.dump(), encoding="utf-8")
    assert Plan.read(tmp_path / "plan.yaml") == plan
    assert plan.identity() == Plan.read(tmp_path / "plan.yaml").identity()


def test_a_stored_recipe_with_another_preset_or_scale_trains_with_their_values(tmp_path: Path) -> None:
    """The stored recipe says what was asked, so no default counts as given."""
    recipe = Recipe(method="fixmatch", scale="demo")
    (tmp_path / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    read = Recipe.read(tmp_path / "recipe.yaml")
    assert make_plan(read).options["mu"] == 5
    assert make_plan(read.changed(preset="paper")).options["mu"] == 7
    assert make_plan(read.changed(scale="cpu")).steps == 1500
    assert make_plan(read.changed(data="cifar100", scale="cpu")).network == "fast"


def test_short_runs_on_colour_images_take_fewer_unlabelled_images_per_step() -> None:
    def sizes(**fields: Any) -> tuple[int | None, ...]:
        options = make_plan(Recipe(**fields)).options
        return options["batch"], options["mu"], options.get("pool_batch")

    assert sizes(data="cifar100", method="osp") == (128, 1, 16)
    assert sizes(data="cifar100", method="fixmatch") == (128, 1, None)
    assert sizes(data="cifar100", method="osp", options={"mu": 4}) == (128, 4, 16)
    assert sizes(data="cifar100", method="osp", preset="paper") == (64, 5, 64)
    assert sizes(data="cifar100", method="osp", scale="paper") == (64, 5, 64)
    assert sizes(data="mnist", method="osp") == (64, 5, 64)
    assert sizes(data="cifar100", method="osp", preset="v0.1") == (64, 2, 16)
    assert sizes(data="cifar100", method="mixmatch", preset="v0.1") == (64, 1, None)  # its own was smaller


@pytest.mark.parametrize("data", ["cifar100", "mnist"])
@pytest.mark.parametrize("scale", ["cpu", "demo"])
def test_all_methods_have_equal_budgets(data: str, scale: str) -> None:
    """As many labelled views and unlabelled images per step, and averaged weights are tested."""
    budgets = set()
    for name in available():
        options = make_plan(Recipe(data=data, method=name, scale=scale)).options
        views, unlabeled = registry.get(name).labeled_views, options["batch"] * options["mu"]
        if name == "mixmatch":  # it mixes labelled with unlabelled images, one to one
            unlabeled *= 1 if (data, scale) == ("cifar100", "cpu") else 5
        budgets.add((views * options["batch"], unlabeled, options["ema"], options["score"]))
    assert len(budgets) == 1


def test_the_defaults_of_the_first_version_can_be_asked_for() -> None:
    """Weights were averaged where the publication does so, each method reported its own score."""
    for name, ema in (("supervised", None), ("osp", None), ("fixmatch", 0.999), ("dac", 0.999)):
        options = make_plan(Recipe(data="cifar100", method=name, preset="v0.1")).options
        assert (options["ema"], options["score"], options["batch"], options["mu"]) == (ema, "own", 64, 2)
    assert make_plan(Recipe(data="mnist", preset="v0.1")).options["partition_by"] == "neighbors"
    asked = make_plan(Recipe(data="mnist", preset="v0.1", options={"ema": 0.9})).options
    assert asked["ema"] == 0.9


def test_short_runs_on_colour_images_turn_filters_with_every_method_but_not_those_of_a_module_given() -> None:
    def optimiser(custom: bool = False, **fields: Any) -> tuple[str, float, str]:
        options = make_plan(Recipe(**fields), custom_network=custom).options
        return options["optimizer"], options["lr"], options["schedule"]

    for method in ("supervised", "fixmatch", "curriculum", "osp"):
        for scale in ("demo", "cpu"):
            assert optimiser(data="cifar100", method=method, scale=scale) == ("muon", 0.05, "cosine")
    options = make_plan(Recipe(data="cifar100")).options
    assert (options["pretrain_lr"], options["pretrain_schedule"]) == (0.05, "cosine")
    assert options["one_schedule"]
    assert optimiser(data="cifar100", options={"optimizer": "sgd", "lr": 0.1}) == ("sgd", 0.1, "cosine")
    for plain in ({"data": "mnist"}, {"data": "cifar100", "scale": "paper"}, {"data": "cifar100", "custom": True}):
        assert optimiser(method="fixmatch", **plain) == ("sgd", 0.03, "cosine-7/16")
    assert optimiser(data="cifar100", method="t2t", preset="paper") == ("sgd", 0.03, "cosine-7/16")


def test_a_method_from_elsewhere_keeps_the_optimiser_it_has_chosen(tmp_path: Path) -> None:
    for chosen, expected in (("", "muon"), ('optimizer: Literal["adam"] = "adam"', "adam"), ("lr: float = 0.1", "sgd")):
        file = tmp_path / f"mine_{expected}.py"
        file.write_text(
            "from typing import Literal\nfrom osp.methods import Method, Options\n"
            f"class Own(Options):\n    {chosen or 'pass'}\n"
            "class Mine(Method):\n    Options = Own\n    unlabeled_views = ()\n",
            "utf-8",
        )
        assert make_plan(Recipe(data="cifar100", method=str(file))).options["optimizer"] == expected


def test_the_paper_preset_knows_the_data_set_and_the_defaults_do_not() -> None:
    plain, other = (make_plan(Recipe(data=name, method="fixmatch")).options for name in ("cifar10", "cifar100"))
    assert plain == other
    paper = {n: make_plan(Recipe(data=n, method="fixmatch", preset="paper")).options for n in ("cifar10", "cifar100")}
    assert (paper["cifar10"]["weight_decay"], paper["cifar100"]["weight_decay"]) == (5e-4, 1e-3)


SAME: list[dict[str, Any]] = [
    {"device": "cpu"},
    {"threads": 1},
    {"log_every": 7},
    {"eval_every": 9},
    {"tensorboard": True},
    {"channels_last": False},
    {"compile": True},
    {"data_dir": "/somewhere"},
    {"preset": "default"},
    {"ood_ratio": 0.6},
    {"options": {"threshold": 0.95}},
]
OTHER: list[dict[str, Any]] = [
    {"data": "mnist"},
    {"method": "uda"},
    {"options": {"threshold": 0.9}},
    {"preset": "paper"},
    {"seed": 1},
    {"steps": 7},
    {"network": "small"},
    {"labels_per_class": 3},
    {"ood_ratio": 0.3},
    {"val_per_class": 0},
    {"id_classes": (1, 2)},
    {"image_size": 16},
    {"precision": "bf16-mixed"},
    {"bn_momentum": 0.5},
    {"group": 8},
]


@pytest.mark.parametrize("fields", SAME)
def test_where_and_how_a_run_runs_is_not_part_of_what_it_is(fields: dict[str, Any]) -> None:
    base = Recipe(method="fixmatch", group=128)
    assert make_plan(base.changed(**fields)).identity() == make_plan(base).identity()


@pytest.mark.parametrize("fields", OTHER)
def test_what_affects_the_result_is_part_of_the_identity(fields: dict[str, Any]) -> None:
    base = Recipe(method="fixmatch", group=128)
    assert make_plan(base.changed(**fields)).identity() != make_plan(base).identity()


METHOD = """
from osp.methods.supervised import Supervised as Base

class Mine(Base):
    summary = "one"
"""


def test_a_method_file_counts_by_its_content(tmp_path: Path) -> None:
    first, second = tmp_path / "one.py", tmp_path / "two.py"
    first.write_text(METHOD, encoding="utf-8")
    second.write_text(METHOD, encoding="utf-8")
    identities = [make_plan(Recipe(method=str(path))).identity() for path in (first, second)]
    assert identities[0] == identities[1]
    second.write_text(METHOD + "# changed", encoding="utf-8")
    assert make_plan(Recipe(method=str(second))).identity() != identities[0]


class Later(FixMatch):
    """FixMatch with two more options: one says what the method did before, and has another default by now."""

    class Options(FixMatchOptions):
        softness: float = Field(0.5, ge=0, json_schema_extra={"before": 0.0})
        layers: tuple[int, ...] = Field((1,), json_schema_extra={"before": [1]})
        unmarked: int = 3


def test_an_option_that_came_later_is_no_part_of_the_identity_where_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = make_plan(Recipe(method="fixmatch"))
    monkeypatch.setattr(registry._methods, "get", lambda name: Later)

    def today(**options: Any) -> Plan:
        plan = make_plan(Recipe(method="fixmatch", options=options))
        return plan.changed(options={key: value for key, value in plan.options.items() if key != "unmarked"})

    assert today(softness=0.0).identity() == today(softness=0).identity() == old.identity()
    assert today().identity() != old.identity()  # the default is not what it did before
    assert today(softness=0.0, layers=(1, 2)).identity() != old.identity()
    assert make_plan(Recipe(method="fixmatch", options={"softness": 0.0})).identity() != old.identity()  # unmarked


def test_a_run_from_before_an_option_goes_on_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_plan(Recipe(method="fixmatch"))
    monkeypatch.setattr(registry._methods, "get", lambda name: Later)
    task = Task(num_classes=6, shape=(1, 8, 8), num_labeled=6, num_unlabeled=6, num_val=6)
    assert build_method(old, task).options.softness == 0.0
    assert old.differences(Recipe(options={"softness": 0.0})) == []
    assert old.differences(Recipe(options={"softness": 0.5})) == ["softness is 0.0 there, 0.5 here"]


class Fewer(FixMatch):
    """FixMatch as it would be after it had, and lost, three options; one of them had come later itself."""

    class Options(FixMatchOptions):
        removed: ClassVar[dict[str, Any]] = {
            "center": False,
            "candidates": 8,
            "late": Field(None, json_schema_extra={"before": None}),
        }


class Derived(Fewer):
    """Removed options are inherited; one that is there again is an option as any other."""

    class Options(Fewer.Options):
        removed: ClassVar[dict[str, Any]] = {"tau": 1.0}
        center: bool = False


def test_an_option_that_was_taken_away_leaves_finished_runs_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_plan(Recipe(method="fixmatch"))
    first = plain.changed(options={**plain.options, "center": False, "candidates": 8})  # from before `late`
    second = plain.changed(options={**first.options, "late": None})
    kept, other = first.identity(), plain.changed(options={**first.options, "center": True}).identity()
    assert plain.identity() != kept
    monkeypatch.setattr(registry._methods, "get", lambda name: Fewer)
    today = make_plan(Recipe(method="fixmatch"))
    assert "center" not in today.options
    assert today.identity() == first.identity() == second.identity() == kept
    assert plain.changed(options={**first.options, "center": True}).identity() == other != kept
    assert plain.changed(options={**first.options, "late": 1}).identity() != kept


def test_a_recipe_or_run_with_an_option_that_was_taken_away_goes_on_where_it_had_its_last_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_plan(Recipe(method="fixmatch"))
    monkeypatch.setattr(registry._methods, "get", lambda name: Fewer)
    assert make_plan(Recipe(method="fixmatch", options={"candidates": 8})).options == plain.options
    with pytest.raises(UserError, match=r"'fixmatch' no longer has the option 'center': .* with False, and True was"):
        make_plan(Recipe(method="fixmatch", options={"center": True}))
    task = Task(num_classes=6, shape=(1, 8, 8), num_labeled=6, num_unlabeled=6, num_val=6)
    assert "center" not in build_method(plain.changed(options={**plain.options, "center": False}), task).options
    with pytest.raises(UserError, match="no longer has the option 'candidates'"):
        build_method(plain.changed(options={**plain.options, "candidates": 9}), task)
    assert plain.differences(Recipe(options={"center": False})) == []
    assert plain.differences(Recipe(options={"center": True})) == ["center is False there, True here"]


def test_removed_options_are_inherited_until_they_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry._methods, "get", lambda name: Derived)
    assert registry.options_removed("fixmatch") == {"candidates": 8, "late": None, "tau": 1.0}


@pytest.mark.parametrize("method", available())
def test_a_removed_option_that_came_later_ended_as_it_began(method: str) -> None:
    before, removed = registry.options_before(method), registry.options_removed(method)
    assert [key for key in before.keys() & removed.keys() if before[key] != removed[key]] == []


def test_the_identity_of_a_run_by_a_method_that_is_gone_or_a_file_needs_no_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemError('this file was run')")
    plan = make_plan(Recipe(method="fixmatch"))
    for name in ("no-such-method", str(tmp_path / "mine.py")):
        assert plan.changed(method=name).identity() not in (None, plan.identity())


def test_a_module_of_ones_own_has_no_identity() -> None:
    assert make_plan(Recipe(), custom_network=True).identity() is None


def test_a_misspelt_network_or_set_is_found_before_any_data_are_looked_for(tmp_path: Path) -> None:
    for fields in ({"network": "smal"}, {"network": "wrn-28-400"}, {"ood_data": "lsn"}):
        with pytest.raises(UserError):
            make_plan(Recipe(data="cifar10", data_dir=str(tmp_path / "nothing"), **fields))


@pytest.mark.parametrize("images", [3, 16])
def test_the_numbers_for_a_folder_fit_its_smallest_class(images: int, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(images if name == "cat" else 40):
            pixels = np.random.default_rng([number, len(name), ord(name[0])]).integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    plan = make_plan(Recipe(data="folder", data_dir=str(tmp_path), ood_ratio=0.0))
    left = images - images // 5  # a fifth of each class is the test
    assert 1 <= plan.labels_per_class <= left // 2
    assert plan.labels_per_class + plan.val_per_class <= left


def test_what_a_recipe_asks_otherwise_is_told_by_name() -> None:
    plan = make_plan(Recipe(method="fixmatch", seed=3))
    assert plan.differences(Recipe()) == []
    assert plan.differences(Recipe(method="fixmatch", seed=3, threads=2, device="cpu")) == []
    asked = Recipe(seed=4, options={"threshold": 0.5, "mu": 5}, steps=1500)
    assert plan.differences(asked) == ["threshold is 0.95 there, 0.5 here", "seed is 3 there, 4 here"]


def test_data_folders_mean_the_same_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_plan(Recipe(data_dir="here")).data_dir == str(tmp_path / "here")
    with pytest.raises(UserError, match="nobody-of-that-name"):
        make_plan(Recipe(data_dir="~nobody-of-that-name/x"))


@pytest.mark.parametrize("text", ["data: 3", "data: digits", "{}", "data: [", "steps: x", "unknown: 1"])
def test_a_damaged_plan_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="plan"):
        Plan.read(tmp_path / "plan.yaml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
def test_a_pipe_or_a_link_in_the_place_of_a_plan_is_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(make_plan(Recipe()).dump(), encoding="utf-8")
    (tmp_path / "link.yaml").symlink_to("good.yaml")
    os.mkfifo(tmp_path / "plan.yaml")
    with pytest.raises(UserError, match=r"Cannot read the plan .*link\.yaml: it is a link"):
        Plan.read(tmp_path / "link.yaml")
    with pytest.raises(UserError, match=r"Cannot read the plan .*plan\.yaml: it is no file"):
        Plan.read(tmp_path / "plan.yaml")
    assert read_fields(tmp_path / "link.yaml")["data"] == "digits"  # a recipe that the user names may be anywhere
