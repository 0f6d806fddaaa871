"""Opening what a recipe names: folders of one's own."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import osp
from helpers.runs import run
from osp import Recipe, UserError
from osp.data.split import Split


def write_images(folder: Path, count: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:03d}.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 20 images; 30 unsorted ones, some of them in folders."""
    write_images(tmp_path / "photos" / "cat", 20, 0)
    write_images(tmp_path / "photos" / "dog", 20, 1)
    write_images(tmp_path / "unsorted", 25, 2)
    write_images(tmp_path / "unsorted" / "2019" / "summer", 5, 3)
    return tmp_path


def recipe_for(photos: Path, **more: object) -> Recipe:
    fields = {"data": "folder", "data_dir": str(photos / "photos"), "ood_data": "pile", "network": "cnn", "threads": 1}
    fields |= {"ood_dir": str(photos / "unsorted"), "labels_per_class": 5, "val_per_class": 2, "method": "fixmatch"}
    return Recipe(**{**fields, "steps": 4, "options": {"batch": 4, "mu": 1}, **more})


def test_a_pile_is_one_group_at_any_depth_whose_truth_nobody_knows(photos: Path) -> None:
    result = osp.train(recipe_for(photos), photos / "run").result
    split = Split.load(photos / "run" / "split.npz")
    assert split.unlabeled_is_ood.sum() == 30
    assert len(split.test_ood) == 0
    for name in ("auroc", "pool_auroc", "purity", "recall", "ood_ratio"):
        assert result[name] is None
    assert (photos / "run" / "result.png").stat().st_size > 10_000


@pytest.mark.parametrize("ood_data", ["pile", "folder"])
def test_a_folder_is_not_taken_for_its_own_ood_source(photos: Path, ood_data: str) -> None:
    for ood_dir in (None, str(photos / "photos")):
        with pytest.raises(UserError, match="as ood_dir"):
            run(recipe_for(photos, ood_data=ood_data, ood_dir=ood_dir), photos / "run")
    assert not (photos / "run").exists()


def test_the_snippet_in_the_docs_sorts_a_pile(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(recipe_for(photos), photos / "runs" / "pets")
    text = (Path(__file__).parents[2] / "docs" / "photos-more.md").read_text("utf-8")
    code = re.search(r"\n    import osp\n\n(    model = osp.load\(\"runs/pets\"\)\n(?:    .*\n)+)", text)
    assert code is not None
    monkeypatch.chdir(photos)
    found: dict[str, Any] = {"osp": osp}
    exec(textwrap.dedent(code[1]), found)
    assert len(found["pool"].files) == len(found["names"]) == len(found["unknown"]) == 30
    assert set(found["names"]) <= {"cat", "dog"}


def test_a_folder_of_unsorted_images_is_not_passed_over(photos: Path) -> None:
    with pytest.raises(UserError, match="ood_data=pile"):
        run(recipe_for(photos, ood_data=None), photos / "run")
    with pytest.raises(UserError, match=r"ood_ratio 0.5: it is not known"):
        run(recipe_for(photos, ood_ratio=0.5), photos / "run")
    assert not (photos / "run").exists()


def test_of_loose_images_nobody_knows_the_truth_either(photos: Path) -> None:
    write_images(photos / "photos", 7, 4)
    result = run(recipe_for(photos, ood_data=None, ood_dir=None), photos / "run").result
    assert result["purity"] is None
    assert result["pool_auroc"] is None
    assert Split.load(photos / "run" / "split.npz").unlabeled_is_ood.sum() == 7
    with pytest.warns(UserWarning, match="7 images of folder lie in no class's folder and are left out"):
        run(recipe_for(photos), photos / "with-pile")


def test_the_folder_of_one_class_is_named(photos: Path) -> None:
    with pytest.raises(UserError, match=r"photos.cat has images but no folders of classes"):
        run(recipe_for(photos, data_dir=str(photos / "photos" / "cat")), photos / "run")


@pytest.mark.parametrize("change", ["gone", "new", "renamed"])
def test_a_run_is_not_resumed_on_other_images(photos: Path, change: str) -> None:
    run(recipe_for(photos), photos / "run")
    (photos / "run" / "result.json").unlink()
    image = photos / "photos" / "cat" / "000.png"
    if change == "gone":
        image.unlink()
    elif change == "new":
        Image.new("RGB", (12, 12), "red").save(photos / "photos" / "cat" / "0000.png")
    else:
        image.rename(image.with_name("zzz.png"))
    with pytest.raises(UserError, match="images have changed since the run"):
        run(recipe_for(photos), photos / "run", resume=True)
