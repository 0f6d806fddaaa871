"""Recipes: what wins over what, what is refused and how, what files may say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osp import Recipe, UserError
from osp.recipe import apply_assignments, make_plan, parse_assignment, read_fields


def test_a_preset_yields_to_the_scale_and_both_to_what_is_set() -> None:
    """FixMatch: batch 64 by default and in the paper, 32 in the demo; mu 5 by default, 7 in the paper."""
    assert make_plan(Recipe(method="fixmatch", scale="cpu")).options["batch"] == 64
    assert make_plan(Recipe(method="fixmatch", scale="demo")).options["batch"] == 32
    demo_of_paper = make_plan(Recipe(method="fixmatch", scale="demo", preset="paper")).options
    assert (demo_of_paper["batch"], demo_of_paper["mu"]) == (32, 7)
    chosen = make_plan(Recipe(method="fixmatch", scale="demo", preset="paper", options={"batch": 16, "mu": 2})).options
    assert (chosen["batch"], chosen["mu"], chosen["threshold"]) == (16, 2, 0.95)


def test_the_paper_preset_of_supervised_is_olivers() -> None:
    options = make_plan(Recipe(method="supervised", preset="paper", scale="paper")).options
    assert options["optimizer"] == "adam"
    assert (options["lr"], options["weight_decay"], options["batch"]) == (3e-3, 0.0, 100)
    assert (options["schedule"], options["drops"], options["drop_factor"]) == ("steps", [0.8], 0.2)


def test_a_scale_sets_steps_network_and_intervals() -> None:
    demo, paper = (
        make_plan(Recipe(scale="demo")),
        make_plan(Recipe(data="cifar100", method="supervised", scale="paper")),
    )
    assert (demo.network, demo.steps, demo.eval_every, demo.log_every) == ("cnn", 400, 40, 4)
    assert (paper.network, paper.steps, paper.eval_every, paper.log_every) == ("wrn-28-2", 500_000, 25_000, 100)
    short = make_plan(Recipe(scale="demo", steps=5))
    assert (short.steps, short.eval_every, short.log_every) == (5, 5, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ood_ratio": math.nan}, ["ood_ratio", "nan"]),
        ({"ood_ratio": 1.01}, ["ood_ratio", "1.01", "less than or equal to 1"]),
        ({"ood_ratio": -0.2}, ["ood_ratio", "-0.2"]),
        ({"ood_ratio": "much"}, ["ood_ratio", "'much'"]),
        ({"id_classes": [False, True]}, ["id_classes", 'put quotes around names like "no" and "yes"']),
        ({"data": "digits", "ood_data": "digits"}, ["ood_data digits", "the run itself; name another set"]),
        ({"ood_rato": 0.5}, ["Unknown field 'ood_rato'", "Did you mean 'ood_ratio'?"]),
        ({"data": "mnst"}, ["Unknown data set 'mnst'", "Did you mean 'mnist'?"]),
        ({"ood_data": "lsn"}, ["Unknown data set 'lsn'", "Did you mean 'lsun'?"]),
        ({"method": "fixmach"}, ["Unknown method 'fixmach'", "Did you mean 'fixmatch'?"]),
        ({"method": "fixmatch", "threshold": 0.9}, ["Unknown field 'threshold'", "options={'threshold': 0.9}"]),
        ({"lr": 0.1, "threshold": 0.9}, ["options={'lr': 0.1}", "Unknown field 'threshold'"]),
        ({"options": {"treshold": 0.9}}, ["no option 'treshold'", "Did you mean 'threshold'?"]),
        ({"options": {"threshold": 1.5}}, ["threshold: 1.5", "less than or equal to 1"]),
        ({"options": {"lr": math.inf}}, ["lr: inf", "finite"]),
        ({"options": {"lr": math.nan}}, ["lr: nan"]),
        ({"options": {"drops": [0.5, math.nan]}}, ["drops", "finite"]),
        ({"scale": "tiny"}, ["scale: 'tiny'", "'demo', 'cpu' or 'paper'"]),
        ({"preset": "papr"}, ["preset: 'papr'"]),
        ({"steps": 0}, ["steps: 0"]),
        ({"seed": -1}, ["seed: -1"]),
        ({"labels_per_class": 0}, ["labels_per_class: 0"]),
        ({"image_size": 4}, ["image_size: 4"]),
        ({"precision": "64"}, ["precision: '64'"]),
    ],
)
def test_what_is_invalid_is_refused_by_field_and_value(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        make_plan(Recipe(**fields))
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("field", ["data", "ood_data", "network", "method", "method file", "tracker", "data_dir"])
def test_a_refusal_does_not_repeat_a_value_of_thousands_of_characters(field: str, tmp_path: Path) -> None:
    value = "a" * 5000 + (".py" if field == "method file" else "")
    words = "data: folder\n" if field == "data_dir" else ""
    (tmp_path / "recipe.yaml").write_text(f"{words}{field.partition(' ')[0]}: {value}\n", "utf-8")
    with pytest.raises(UserError) as refused:
        make_plan(Recipe.read(tmp_path / "recipe.yaml"))
    assert "aaaa" in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_several_mistakes_are_named_at_once() -> None:
    with pytest.raises(UserError) as refused:
        Recipe(ood_ratio=2, steps=-1)
    assert "ood_ratio: 2" in str(refused.value)
    assert "steps: -1" in str(refused.value)


def test_a_recipe_is_not_changed_but_copied() -> None:
    recipe = Recipe(seed=1)
    assert (recipe.changed(seed=2).seed, recipe.seed) == (2, 1)
    with pytest.raises(UserError, match="seed"):
        recipe.changed(seed=-2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-3", ("lr", 0.001)),
        ("lr=.5", ("lr", 0.5)),
        ("steps=100", ("steps", 100)),
        ("steps=1e4", ("steps", 10000.0)),
        ("nesterov=false", ("nesterov", False)),
        ("ema=null", ("ema", None)),
        ("drops=[0.5, 0.75]", ("drops", [0.5, 0.75])),
        ("data_dir=/a=b", ("data_dir", "/a=b")),
        (" lr =3", ("lr", 3)),
        ("network=wrn-28-2", ("network", "wrn-28-2")),
        ("ema=", ("ema", None)),
    ],
)
def test_an_assignment_means_what_it_looks_like(text: str, expected: tuple[str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["lr", "=3", "", "lr=[1", "a={"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--set"):
        parse_assignment(text)


@given(st.text(max_size=30))
def test_any_text_is_an_assignment_or_a_sentence(text: str) -> None:
    try:
        key, _ = parse_assignment(text)
    except UserError:
        return
    assert key
    assert key == text.split("=")[0].strip()


def test_assignments_go_to_the_recipe_or_else_to_the_method() -> None:
    fields = apply_assignments({"seed": 1, "options": {"mu": 3}}, ["seed=2", "lr=0.5", "options.batch=7"])
    assert fields == {"seed": 2, "options": {"mu": 3, "lr": 0.5, "batch": 7}}
    with pytest.raises(UserError, match="options"):
        apply_assignments({"options": [1, 2]}, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: [", "not valid YAML"),
        ("- a\n- b", "field: value"),
        ("just words", "field: value"),
        ("", "field: value"),
        ("1: 2", "field: value"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_fields(tmp_path / "recipe.yaml")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read the recipe"):
        Recipe.read(tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="Cannot read the recipe"):
        Recipe.read(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bytes\.yaml"):
        Recipe.read(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1]\nb: *x",
        "steps: " + "[" * 200 + "]" * 200,
        "base: &b {seed: 1}\nsteps:\n  <<: *b",
        "steps: 2024-99-99",
        "seed: !!int abc",
        "seed: !!float x",
        "seed: !!timestamp x",
        "x: " + "9" * 5000,
        "data: a\0b",
        "steps: 10\nsteps: 20",
        "options: {alpha: 1, alpha: 2}",
        "seed: 010",
        "seed: 1:30",
    ],
)
def test_awkward_yaml_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        make_plan(Recipe.read(tmp_path / "recipe.yaml"))


def test_a_file_too_long_for_a_recipe_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("seed: 1\n" * 200_000, encoding="utf-8")
    with pytest.raises(UserError, match="longer than 250,000 bytes"):
        Recipe.read(tmp_path / "recipe.yaml")


def test_a_recipe_file_never_runs_code(tmp_path: Path) -> None:
    """A method file is named by a person, on the command line or in Python."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(f"method: {tmp_path / 'evil.py'}", encoding="utf-8")
    with pytest.raises(UserError, match=r"files do not say which code is run.*--method"):
        Recipe.read(tmp_path / "recipe.yaml")
    assert not (tmp_path / "ran").exists()


def test_only_what_was_asked_is_written_and_the_file_asks_for_it_again(tmp_path: Path) -> None:
    recipe = Recipe(method="fixmatch", id_classes=(3, "5", 1), options={"mu": 2})
    assert recipe.dump() == "id_classes:\n- 3\n- '5'\n- 1\nmethod: fixmatch\noptions:\n  mu: 2\n"
    (tmp_path / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    assert Recipe.read(tmp_path / "recipe.yaml") == recipe
    (tmp_path / "nothing.yaml").write_text(Recipe().dump(), encoding="utf-8")
    assert Recipe.read(tmp_path / "nothing.yaml") == Recipe()
