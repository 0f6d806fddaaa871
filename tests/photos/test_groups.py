"""Unknown photos that look alike form groups, the largest first; a name makes one a class."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.commands import osp
from helpers.small_backbone import small_backbone
from osp.errors import UserError
from osp.models.photo import BACKBONES, PhotoModel, load_model
from osp.photos.fit import fit
from osp.photos.groups import LEAST, SUREST, group_pile
from osp.photos.instant import fit_instant
from osp.report import write_report
from osp.runs.run import Run

COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200), "green": (40, 200, 40), "yellow": (220, 220, 30)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit of red and blue photos; in the pile also 30 green and 14 yellow ones."""
    root = tmp_path_factory.mktemp("groups")
    counts = {"red": 27, "blue": 27, "green": 30, "yellow": 14}
    for number, (color, count) in enumerate(counts.items()):
        for seed in range(count):
            place = f"sorted/{color}" if number < 2 and seed < 7 else "pile"
            coarse = np.random.default_rng(100 * number + seed).normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 25
            path = root / place / f"{color} {seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.clip(np.array(COLORS[color]) + coarse, 0, 255).astype(np.uint8)).save(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSP_CACHE", str(root / "cache"))
        patch.setitem(BACKBONES, "tiles", small_backbone)
        fit(root / "sorted", root / "pile", root / "run", backbone="tiles")
    return root


@pytest.fixture(autouse=True)
def _own(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(made / "cache"))
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def color_of(file: str) -> str:
    return Path(file).name.partition(" ")[0]


def test_kinds_that_no_label_names_are_groups_the_largest_first_and_leftovers_have_none() -> None:
    draws = np.random.default_rng(0)
    centers = draws.normal(size=(5, 40)) * 3 + 5
    kinds = np.repeat([0, 1, 2, 3, 4], [60, 60, 25, 50, 3])
    pile = (centers[kinds] + draws.normal(size=(len(kinds), 40))).astype(np.float32)
    taught = np.repeat([0, 1], 8)
    labeled = (centers[taught] + draws.normal(size=(16, 40))).astype(np.float32)
    instant, members = group_pile(fit_instant(labeled, taught, pile, ("a", "b")), pile)
    sizes = [len(rows) for rows in members]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= LEAST
    assert {int(kind) for rows in members for kind in kinds[rows]} <= {2, 3, 4}
    for rows in members:
        assert np.bincount(kinds[rows]).max() >= 0.9 * len(rows)
    outside = instant.ood_score(pile) > instant.threshold()
    numbers = np.where(outside, instant.group_of(pile), 0)
    for number, rows in enumerate(members, 1):
        assert set(np.flatnonzero(numbers == number)) == set(rows.tolist())
        nearness = instant.kinds(pile)[1][rows]
        assert (np.diff(nearness) <= 0).all()
    assert not numbers[kinds < 2].any() or not outside[kinds < 2].any()
    ungrouped = fit_instant(labeled, taught, pile[:0], ("a", "b"))
    assert group_pile(ungrouped, pile) == (ungrouped, [])
    assert not ungrouped.group_of(pile).any()


def test_table_result_and_prediction_name_the_same_groups(made: Path) -> None:
    rows = [row for row in table(made / "run" / "pile.csv") if not row["note"]]
    groups = json.loads((made / "run" / "result.json").read_text())["groups"]
    assert {row["group"] for row in rows if row["decision"] == "in"} == {""}
    names = [each["name"] for each in groups]
    assert names == [f"group-{number:02d}" for number in range(1, len(groups) + 1)]
    for each in groups:
        members = [row["file"] for row in rows if row["group"] == each["name"]]
        assert len(members) == each["photos"] >= LEAST
        assert set(each["surest"]) <= set(members)
        assert len(each["surest"]) == min(SUREST, len(members))
        assert len({color_of(file) for file in each["surest"]}) == 1
    assert color_of(groups[0]["surest"][0]) == "green"
    assert "yellow" in {color_of(each["surest"][0]) for each in groups}
    files = [row["file"] for row in rows]
    said = {each.file: each.group for each in load_model(made / "run").predict_files(files)}
    assert said == {row["file"]: row["group"] for row in rows}
    lines = osp(made, "predict", "run", *files, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["group"] for line in lines] == [row["group"] or None for row in rows]
    listed = list(csv.DictReader(osp(made, "predict", "run", *files, "--format", "csv").stdout.splitlines()))
    assert [row["group"] for row in listed] == [row["group"] for row in rows]


def test_the_page_shows_each_group_with_its_photos_and_how_to_name_it(made: Path, tmp_path: Path) -> None:
    groups = json.loads((made / "run" / "result.json").read_text())["groups"]
    text = write_report(made / "run", out=tmp_path / "page.html").read_text()
    places = [text.index(f'</i>{each["name"]} <span class="faint">{each["photos"]} photos</span>') for each in groups]
    assert places == sorted(places)
    shown = text[places[0] : text.index('id="map"')]
    assert shown.count('<figure class="shot"') == sum(len(each["surest"]) for each in groups)
    assert "--name group-01=NAME" in text


def test_a_named_group_is_a_class_and_an_existing_name_adds_to_it(made: Path) -> None:
    before = json.loads((made / "run" / "result.json").read_text())
    done = osp(made, "fit", "--from", "run", "--name", "group-1=leaf", "--out", "named", "--no-page")
    assert done.returncode == 0, done.stderr
    result = json.loads((made / "named" / "result.json").read_text())
    assert result["classes"] == {"blue": 7, "leaf": len(before["groups"][0]["surest"]), "red": 7}
    green = [row for row in table(made / "named" / "pile.csv") if color_of(row["file"]) == "green"]
    assert sum(row["class"] == "leaf" and row["decision"] == "in" for row in green) > 0.8 * len(green)
    assert "'leaf' was named by group alone" in done.stdout
    added = fit(None, None, made / "added", earlier=made / "run", name=["group-01=red"])
    assert added.result["classes"] == {"blue": 7, "red": 7 + len(before["groups"][0]["surest"])}
    assert added.result["asked"]["name"] == ["group-01=red"]
    grouped = added.result["grouped"]
    assert len(grouped) == len(before["groups"][0]["surest"])
    assert added.result["threshold_photos"] == before["threshold_photos"]
    later = fit(None, None, made / "later", earlier=made / "added")  # whoever goes on from it knows it, too
    assert later.result["grouped"] == grouped


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": ["group-99=heron"], "earlier": "run"}, "there is no such group.*group-01"),
        ({"name": ["heron"], "earlier": "run"}, "say it as group-3=heron"),
        ({"name": ["group-1="], "earlier": "run"}, "say it as group-3=heron"),
        ({"name": ["group-1=a/b"], "earlier": "run"}, "the name of a class has no /"),
        ({"name": ["group-1=none"], "earlier": "run"}, "none is no class.*--none"),
        ({"name": ["group-1=heron"]}, "say which fit with --from"),
        ({}, "Name the folder of your sorted photos"),
    ],
)
def test_what_names_no_group_is_refused_before_any_work(made: Path, given: dict[str, Any], says: str) -> None:
    if "earlier" in given:
        given = {**given, "earlier": made / given["earlier"]}
    with pytest.raises(UserError, match=says):
        fit(None, None, made / "refused", **given)
    assert not (made / "refused").exists()


def test_groups_are_stored_with_the_model_and_damaged_ones_are_refused(made: Path, tmp_path: Path) -> None:
    model = load_model(made / "run")
    assert model.instant.groups is not None
    bare = PhotoModel(replace(model.instant, groups=None), model.backbone)
    bare.save(tmp_path / "bare")  # as fits had it before there were groups
    assert load_model(tmp_path / "bare").instant.groups is None
    for wrong in (model.instant.groups[1:], model.instant.groups + 99, model.instant.groups.astype(np.float32)):
        PhotoModel(replace(model.instant, groups=wrong), model.backbone).save(tmp_path / "wrong")
        with pytest.raises(UserError, match="damaged"):
            load_model(tmp_path / "wrong")


def test_damaged_groups_of_a_result_are_refused(made: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(made / "run", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for wrong in ([1], [{"name": "group-01"}], 5):
        (tmp_path / "run" / "result.json").write_text(json.dumps({**result, "groups": wrong}))
        with pytest.raises(UserError, match="damaged"):
            fit(None, None, tmp_path / "new", earlier=tmp_path / "run", name=["group-1=x"])
        with pytest.raises(UserError, match="damaged"):
            _ = Run.read(tmp_path / "run").tables
